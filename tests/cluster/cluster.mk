##@ Cluster: a real Kubernetes of several nodes in namespaces of its own (root)
STAND := tests/cluster/run

.PHONY: cluster
cluster: stand ## Start a cluster, say how to use it, keep it until Ctrl-C (NODES=)
	@$(CLEAN) $(STAND) $(if $(NODES),--nodes $(NODES)) $(PYTHON) -m tests.cluster.stand.interactive

.PHONY: test-cluster
test-cluster: stand kuberay ## Tests beside a real cluster (K= selects); junit and logs of all parts in build/cluster
	@mkdir -p build/cluster
	@$(STEP) "cluster tests" $(CLEAN) $(STAND) $(PYTHON) -m pytest tests/cluster --ignore=tests/cluster/lifecycle \
	  --junitxml=build/cluster/junit.xml --durations=10 $(if $(K),-k "$(K)")
	@$(STEP) "tests of the cluster stand" $(PYTEST) tests/cluster/lifecycle --doctest-modules tests/cluster/stand \
	  tests/support/binaries --junitxml=build/cluster/junit-lifecycle.xml

.PHONY: soak-cluster
soak-cluster: stand kuberay ## The campaigns of `make soak` that need a cluster (K= selects)
	@mkdir -p build/cluster
	@$(STEP) "soak beside a cluster" $(CLEAN) $(STAND) $(PYTHON) -m pytest tests/cluster --ignore=tests/cluster/lifecycle \
	  -m soak --junitxml=build/cluster/junit-soak.xml --durations=10 $(if $(K),-k "$(K)")

.PHONY: cluster-clean
cluster-clean: env ## Remove what dead stands left, cached images and kept logs
	@$(CLEAN) $(STAND) --clean

.PHONY: stand
stand: env
	@$(STEP) "programs and images of the cluster" $(FETCH) $(STAND) --prepare

# Only tests need it, and nothing can be fetched inside a stand.
.PHONY: kuberay
kuberay: env
	@$(STEP) "KubeRay's operator" $(FETCH) $(PYTHON) -m tests.support.binaries kuberay

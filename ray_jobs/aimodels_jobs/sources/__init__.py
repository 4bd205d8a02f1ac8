"""Sources of models, one module each, behind `aimodels_core.source.Source`. They import nothing of each other."""

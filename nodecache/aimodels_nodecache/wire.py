"""What kubelet and a CSI driver say to each other, as far as this driver does: messages made from tables at run time.

Names and numbers are those of the Container Storage Interface 1.12 (csi.v1) and of kubelet's plugin registration v1.
A number of an enumeration travels as an int32 does, so enumerations are int32 here.
"""

from collections.abc import Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]  # has no types
from google.protobuf import (  # type: ignore[import-untyped]  # has no types
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    wrappers_pb2,
)

CSI = "csi.v1"
REGISTRATION = "pluginregistration"

GET_VOLUME_STATS = 2
BYTES, INODES = 1, 2
"""Units of a volume's usage."""

_MAP = "map"
_CSI_MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "GetPluginInfoRequest": (),
    "GetPluginInfoResponse": (("name", 1, "string"), ("vendor_version", 2, "string"), ("manifest", 3, _MAP)),
    "GetPluginCapabilitiesRequest": (),
    "GetPluginCapabilitiesResponse": (),
    "ProbeRequest": (),
    "ProbeResponse": (("ready", 1, "google.protobuf.BoolValue"),),
    "MountVolume": (("fs_type", 1, "string"), ("mount_flags", 2, "string*"), ("volume_mount_group", 3, "string")),
    "BlockVolume": (),
    "AccessMode": (("mode", 1, "int32"),),
    "VolumeCapability": (("block", 1, "BlockVolume"), ("mount", 2, "MountVolume"), ("access_mode", 3, "AccessMode")),
    "NodePublishVolumeRequest": (
        ("volume_id", 1, "string"),
        ("publish_context", 2, _MAP),
        ("staging_target_path", 3, "string"),
        ("target_path", 4, "string"),
        ("volume_capability", 5, "VolumeCapability"),
        ("readonly", 6, "bool"),
        ("secrets", 7, _MAP),
        ("volume_context", 8, _MAP),
    ),
    "NodePublishVolumeResponse": (),
    "NodeUnpublishVolumeRequest": (("volume_id", 1, "string"), ("target_path", 2, "string")),
    "NodeUnpublishVolumeResponse": (),
    "NodeGetVolumeStatsRequest": (
        ("volume_id", 1, "string"),
        ("volume_path", 2, "string"),
        ("staging_target_path", 3, "string"),
    ),
    "VolumeUsage": (("available", 1, "int64"), ("total", 2, "int64"), ("used", 3, "int64"), ("unit", 4, "int32")),
    "NodeGetVolumeStatsResponse": (("usage", 1, "VolumeUsage*"),),
    "Rpc": (("type", 1, "int32"),),
    "NodeServiceCapability": (("rpc", 1, "Rpc"),),
    "NodeGetCapabilitiesRequest": (),
    "NodeGetCapabilitiesResponse": (("capabilities", 1, "NodeServiceCapability*"),),
    "NodeGetInfoRequest": (),
    "NodeGetInfoResponse": (("node_id", 1, "string"), ("max_volumes_per_node", 2, "int64")),
}
_REGISTRATION_MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "InfoRequest": (),
    "PluginInfo": (
        ("type", 1, "string"),
        ("name", 2, "string"),
        ("endpoint", 3, "string"),
        ("supported_versions", 4, "string*"),
    ),
    "RegistrationStatus": (("plugin_registered", 1, "bool"), ("error", 2, "string")),
    "RegistrationStatusResponse": (),
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}


def _file(package: str, messages: Mapping[str, tuple[tuple[str, int, str], ...]]) -> Any:
    """Describe a package; `string*` is repeated, `map` is from strings to strings."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.append(wrappers_pb2.DESCRIPTOR.name)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            _set_kind(made, kind.rstrip("*"), f".{package}.", message)
            if kind.endswith("*") or kind == _MAP:
                made.label = _Field.LABEL_REPEATED
    return file


def _set_kind(field: Any, kind: str, scope: str, message: Any) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if kind != _MAP:
        field.type_name = f".{kind}" if "." in kind else scope + kind
        return
    entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    field.type_name = f"{scope}{message.name}.{entry.name}"


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    for package, messages in ((CSI, _CSI_MESSAGES), (REGISTRATION, _REGISTRATION_MESSAGES)):
        pool.AddSerializedFile(_file(package, messages).SerializeToString())
    return pool


_POOL = _pool()


def message(name: str) -> Any:
    """Return the class of a message, such as `csi.v1.ProbeRequest`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def csi_service(name: str, methods: Mapping[str, Any]) -> Any:
    """Make a service of csi.v1 from functions by the names of its methods."""
    return _service(f"{CSI}.{name}", {each: (methods[each], f"{each}Request", f"{each}Response") for each in methods})


def registration_service(get_info: Any, notify: Any) -> Any:
    """Make the service that kubelet finds by its socket."""
    methods = {
        "GetInfo": (get_info, "InfoRequest", "PluginInfo"),
        "NotifyRegistrationStatus": (notify, "RegistrationStatus", "RegistrationStatusResponse"),
    }
    return _service(f"{REGISTRATION}.Registration", methods)


def _service(service: str, methods: Mapping[str, tuple[Any, str, str]]) -> Any:
    package = service.rpartition(".")[0]

    def one(function: Any, request: str, response: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            function,
            request_deserializer=message(f"{package}.{request}").FromString,
            response_serializer=message(f"{package}.{response}").SerializeToString,
        )

    return grpc.method_handlers_generic_handler(service, {name: one(*each) for name, each in methods.items()})

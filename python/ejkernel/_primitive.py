"""Every operation as one JAX primitive: shapes by the library's rules, kernel and config chosen while lowering, vmap by
folding into the operation's own batch. Differentiation is in `_gradient`."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from ejkernel import _library, _settings, _xla
from ejkernel._declarations import OPERATIONS
from ejkernel._dtypes import dtype_of, name_of
from ejkernel._library import HOST, NO_OPTIONS, Device, Options, Plan, Spec


@dataclasses.dataclass(frozen=True)
class Call:
    """Everything about a call but its arrays: what the primitive is parametrised with, and what jaxprs show."""

    operation: str
    given: tuple[str, ...]  # the inputs that are there, in declared order
    params: tuple[tuple[str, Any], ...] = ()
    options: Options = NO_OPTIONS
    wanted: tuple[str, ...] | None = None  # the outputs; None: all that the call has
    status: bool = False  # whether the status word comes after them

    def plan(self, specs: Sequence[Spec], device: Device = HOST, options: Options | None = None) -> Plan:
        inputs = dict(zip(self.given, specs, strict=True))
        options = self.options if options is None else options
        if options.overlay is not None and options.config is None:
            with contextlib.suppress(_library.InvalidArgument):
                overlaid = dataclasses.replace(options, config=options.overlay)
                return Plan(self.operation, inputs, dict(self.params), overlaid, device)
        return Plan(self.operation, inputs, dict(self.params), options, device)


def specs_of(avals: Sequence[Any]) -> tuple[Spec, ...]:
    for aval in avals:
        if not all(isinstance(extent, int) for extent in aval.shape):
            raise _library.InvalidArgument(
                f"ejkernel: shapes must be numbers, since every shape has a plan of its own, got {list(aval.shape)}; "
                "trace or export the function once for each"
            )
    return tuple(Spec(name_of(aval.dtype), tuple(aval.shape)) for aval in avals)


# ---- shapes ----


@functools.lru_cache(maxsize=4096)
def described(call: Call, specs: tuple[Spec, ...]) -> Mapping[str, Any]:
    """What the declaration alone says of a call, whichever kernel it gets: outputs, dims and batch (ejk_plan_info).
    Raises for a call that the operation refuses, with the library's sentence."""
    return call.plan(specs, options=Options(platform="reference", policy="heuristics")).info


@functools.lru_cache(maxsize=4096)
def output_specs(call: Call, specs: tuple[Spec, ...]) -> dict[str, Spec]:
    """The call's outputs, the wanted ones alone, by name. Updated inputs are always among them: a program that did not
    know of one would take it for unchanged."""
    present = {o["name"]: Spec(o["dtype"], tuple(o["shape"])) for o in described(call, specs)["outputs"] if o}
    updated = OPERATIONS[call.operation].updated_names
    return {n: spec for n, spec in present.items() if call.wanted is None or n in call.wanted or n in updated}


def output_names(call: Call, arrays: Sequence[Any]) -> tuple[str, ...]:
    return tuple(output_specs(call, specs_of(arrays)))


STATUS = Spec("u32", (1,))  # bits of faults in the contents of index arrays; see docs/jax.md


def _varying_axes(aval: Any) -> frozenset[Any]:
    """The mesh axes of a shard_map over which the array differs."""
    kind = getattr(aval, "manual_axis_type", None)
    return aval.vma if kind is None else kind.varying  # before jax 0.10 it was there by itself


def _abstract_eval(*avals: Any, call: Call) -> list[Any]:
    # Inputs vary over the same axes (`bind` sees to it), and so do the outputs. Arrays may lie on a mesh of explicit axes
    # that nobody has set.
    meshes = (aval.sharding.mesh for aval in avals)
    mesh = next((mesh for mesh in meshes if not mesh.empty), jax.sharding.get_abstract_mesh())
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    specs = [*output_specs(call, specs_of(avals)).values(), *([STATUS] if call.status else [])]
    return [
        avals[0].update(shape=spec.shape, dtype=dtype_of(spec.dtype), weak_type=False, sharding=sharding)
        for spec in specs
    ]


# ---- lowering ----


def _stands_behind_xla(kernel: Mapping[str, Any]) -> bool:
    """References come after the platform xla, which comes after every kernel."""
    return kernel["platform"] == "reference" or kernel["kernel"].endswith("_reference")


def is_for_xla(options: Options) -> bool:
    return options.platform == "xla" or options.kernel == "xla"


def _check_that_xla_fits(call: Call, backend: str) -> None:
    """What else is asked for where the platform xla is: it has one kernel, for every device, and nothing to choose."""
    o = call.options
    expected = {"platform": (None, "xla"), "kernel": (None, "xla"), "backend": (None, backend), "config": (None,)}
    expected["policy"] = (None, *_settings.POLICIES)
    for name, values in expected.items():
        if (value := getattr(o, name)) not in values:
            known = " or ".join(f"'{v}'" for v in values if v is not None)
            raise _library.InvalidArgument(
                f"{call.operation}: {name} must {f'be {known}' if known else 'be left out'} on the platform xla, got "
                f"{dict(value) if name == 'config' else repr(value)}; leave it out"
            )


def run_on_xla(call: Call, *arrays: jax.Array) -> list[jax.Array]:
    """The call by the platform xla's implementation, in the caller's trace."""
    implementation = _xla.implementation(call.operation)
    if implementation is None:
        raise _library.Unsupported(f"{call.operation}: the platform xla has no implementation of it")
    op = OPERATIONS[call.operation]
    inputs = dict.fromkeys(op.input_names) | dict(zip(call.given, arrays, strict=True))
    params = {param.name: param.default for param in op.params} | dict(call.params)
    results = implementation(inputs, params)
    status = [_xla.status(inputs, params)] if call.status else []
    return [results[name] for name in output_specs(call, specs_of(arrays))] + status


def _lower_to_xla(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    return mlir.lower_fun(functools.partial(run_on_xla, call), multiple_results=True)(ctx, *operands)


def _lower_elsewhere(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    """For devices that the library has no kernels for."""
    if is_for_xla(call.options):
        _check_that_xla_fits(call, ctx.module_context.platforms[0])
    return _lower_to_xla(ctx, *operands, call=call)


def choose(call: Call, specs: Sequence[Spec], device: Device) -> Plan | None:
    """The plan that serves a call there. None: the platform xla's implementation does, because it was asked for or
    because only a reference would serve and nobody asked for one."""
    if is_for_xla(call.options):
        _check_that_xla_fits(call, "gpu" if device.kind == "cuda" else device.kind)
        return None
    plan = call.plan(specs, device)
    unasked = call.options.platform is None and call.options.kernel is None
    if unasked and _stands_behind_xla(plan.info) and _xla.implementation(call.operation) is not None:
        return None
    return plan


def _stamp(results: Sequence[Any], info: Mapping[str, Any]) -> None:
    """The kernel and its config in words, for people who read the program or its profile."""
    config = " ".join(f"{field}={value}" for field, value in info["config"].items())
    words = {"ejkernel.kernel": info["kernel"], "ejkernel.config": config}
    attributes = {name: mlir.ir.StringAttr.get(text) for name, text in words.items()}
    results[0].owner.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(attributes)


def _lower_to_plan(device: Device, ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    """A custom call of the plan for these local shapes, or the platform xla's implementation."""
    plan = choose(call, specs_of(ctx.avals_in), device)
    if plan is None:
        return _lower_to_xla(ctx, *operands, call=call)
    info = plan.info
    text = info["call"]
    more = {} if call.wanted is None else {"outputs": list(call.wanted)}
    more |= {"status": True} if call.status else {}
    if more:
        text = json.dumps(json.loads(text) | more, separators=(",", ":"))
    results = list(ctx.avals_out)
    if info["workspace_bytes"] > 0:
        results.append(jax.core.ShapedArray((info["workspace_bytes"],), jnp.uint8))
    # XLA copies the operand of such a result first where anybody else reads it, or where it was not donated.
    updated = OPERATIONS[call.operation].updated_names
    names = list(output_specs(call, specs_of(ctx.avals_in)))
    aliases = {call.given.index(name): names.index(name) for name in names if name in updated}
    lower = jax.ffi.ffi_lowering(f"ejkernel_{device.kind}", operand_output_aliases=aliases or None)
    values = lower(ctx.replace(avals_out=results), *operands, call=text)
    if _settings.stamps_programs():
        _stamp(values, info)
    return values[: len(ctx.avals_out)]


# ---- vmap ----


def _fold(
    call: Call, arrays: Sequence[jax.Array], axes: Sequence[int | None], size: int
) -> tuple[list, list, int] | None:
    """The arrays with all slices as entries of the operation's own batch, the axes of the outputs where slices and
    entries then lie, and how many entries a slice has; None where entries are not calls of their own, as where each has a
    status word."""
    if call.status:
        return None
    slices = [
        Spec(name_of(x.dtype), x.shape if axis is None else x.shape[:axis] + x.shape[axis + 1 :])
        for x, axis in zip(arrays, axes, strict=True)
    ]
    batch = described(call, tuple(slices))["batch"]
    outputs = output_specs(call, tuple(slices))
    if batch is None or any(
        name not in batch["outputs"] or spec.shape[batch["outputs"][name]] != batch["size"]
        for name, spec in outputs.items()
    ):
        return None
    folded = []
    for name, array, axis, spec in zip(call.given, arrays, axes, slices, strict=True):
        entry = batch["inputs"].get(name)
        if entry is None and axis is not None:
            return None
        # One entry where the batch has several is a broadcast, and stays so; where the batch is 1 every input has one.
        is_broadcast = entry is not None and spec.shape[entry] == 1 and batch["size"] != 1
        if entry is None or (axis is None and is_broadcast and name not in outputs):
            folded.append(array)  # the same for every slice
            continue
        extent = batch["size"] if spec.shape[entry] == 1 else spec.shape[entry]
        rows = jnp.expand_dims(array, entry) if axis is None else jnp.moveaxis(array, axis, entry)
        shape = spec.shape[:entry] + (size, extent) + spec.shape[entry + 1 :]
        folded.append(jnp.broadcast_to(rows, shape).reshape(*shape[:entry], size * extent, *shape[entry + 2 :]))
    return folded, [batch["outputs"][name] for name in outputs], batch["size"]


def _batch(arrays: Sequence[jax.Array], axes: Sequence[Any], *, call: Call) -> tuple[list[jax.Array], list[int]]:
    # Of the axis that is mapped, inputs of one slice say nothing: what it is divided over here, its results are as well.
    mapped = [(jax.typeof(x).sharding, axis) for x, axis in zip(arrays, axes, strict=True) if axis is not None]
    divided = [(s.mesh, s.spec[axis]) for s, axis in mapped if s.spec[axis] is not None]
    results, out_axes = _batch_whole([_whole(x) for x in arrays], axes, call)
    if divided:
        results = [_divided(x, axis, *divided[0]) for x, axis in zip(results, out_axes, strict=True)]
    return results, out_axes


def _batch_whole(arrays: Sequence[jax.Array], axes: Sequence[Any], call: Call) -> tuple[list[jax.Array], list[int]]:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    if (fold := _fold(call, arrays, axes, size)) is not None:
        folded, out_axes, extent = fold
        results = bind(call, folded)
        return [
            x.reshape(*x.shape[:axis], size, extent, *x.shape[axis + 1 :])
            for x, axis in zip(results, out_axes, strict=True)
        ], out_axes
    # One slice after the other, all by one plan.
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    mapped = [x for x, axis in zip(moved, axes, strict=True) if axis is not None]

    def one(slices: Sequence[jax.Array]) -> list[jax.Array]:
        rest = iter(slices)
        return bind(call, [x if axis is None else next(rest) for x, axis in zip(moved, axes, strict=True)])

    results = jax.lax.map(one, mapped)
    return list(results), [0] * len(results)


# ---- differentiation ----


def _refuse_derivative(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    """What JAX comes to where nothing in `_gradient` stands before it, and some input is differentiated."""
    if OPERATIONS[call.operation].gradient is not None or any(
        op.gradient == call.operation for op in OPERATIONS.values()
    ):
        raise _library.Unsupported(
            f"{call.operation}: its derivative is taken once, in reverse mode (jax.grad, jax.vjp); there is no second one, "
            "and none in forward mode"
        )
    raise _library.Unsupported(
        f"{call.operation}: it has no derivative, and one of its inputs is differentiated; pass "
        "jax.lax.stop_gradient(input)"
    )


# ---- the primitive ----

primitive = jax.extend.core.Primitive("ejkernel")
primitive.multiple_results = True
primitive.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[primitive] = _refuse_derivative
batching.primitive_batchers[primitive] = _batch
mlir.register_lowering(primitive, _lower_elsewhere)
mlir.register_lowering(primitive, functools.partial(_lower_to_plan, Device("cpu")), platform="cpu")
mlir.register_lowering(primitive, functools.partial(_lower_to_plan, Device("cuda")), platform="cuda")


@functools.lru_cache(maxsize=4096)
def _compiled(call: Call) -> Any:
    return jax.jit(functools.partial(primitive.bind, call=call))


@primitive.def_impl
def _run(*arrays: Any, call: Call) -> Any:
    with jax.disable_jit(False):  # one call is compiled, whatever else is not: otherwise it would come here again
        return _compiled(call)(*arrays)


def _whole(x: jax.Array) -> jax.Array:
    """On a mesh of explicit axes: the array as every device has all of it, since each runs the whole call."""
    sharding = jax.typeof(x).sharding
    if all(axes is None for axes in sharding.spec):
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec()))


def _divided(x: jax.Array, axis: int, mesh: Any, over: Any) -> jax.Array:
    """The array with that axis divided over these axes of the mesh."""
    spec = jax.sharding.PartitionSpec(*(over if n == axis else None for n in range(x.ndim)))
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, spec))


def alike(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """What a call asks of its inputs: undivided, and inside shard_map all varying over the axes that any of them varies
    over. Both have derivatives of their own."""
    arrays = [_whole(x) for x in arrays]
    axes = [_varying_axes(jax.typeof(x)) for x in arrays]
    every = frozenset().union(*axes)
    missing = [tuple(every - known) for known in axes]
    return [jax.lax.pcast(x, m, to="varying") if m else x for x, m in zip(arrays, missing, strict=True)]


def bind(call: Call, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The call's wanted outputs in declared order, and its status word if it is wanted."""
    named = jax.named_scope(f"ejkernel.{call.operation}") if _settings.stamps_programs() else contextlib.nullcontext()
    with named:
        return primitive.bind(*alike(arrays), call=call)


# ---- what XLA calls ----


def _register() -> None:
    for platform, jax_platform in (("cpu", "cpu"), ("cuda", "CUDA")):
        handlers = _library.xla_handlers(platform)
        addresses = {stage: getattr(handlers, stage) for stage, _ in handlers._fields_ if stage != "size"}
        stages = {stage: jax.ffi.pycapsule(ctypes.c_void_p(at)) for stage, at in addresses.items() if at}
        jax.ffi.register_ffi_target(f"ejkernel_{platform}", stages, platform=jax_platform)


_register()

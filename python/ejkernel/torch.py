"""The operations that have a gradient, for torch's autograd.

    import ejkernel.torch
    out, lse = ejkernel.torch.flash_attention(query, key, value, causal=True)
    out.sum().backward()

Arguments are those of the functions in `ejkernel`. Gradients are the library's own operations, found from names alone
as in `_gradient`; they cannot be differentiated once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ejkernel import _functions, _gradient, _interop
from ejkernel._declarations import OPERATIONS, Operation
from ejkernel._library import InvalidArgument, Plan, Unsupported
from ejkernel._primitive import Call


def _gradient_of(call: Call) -> Operation:
    return OPERATIONS[OPERATIONS[call.operation].gradient]


def _result_names(call: Call, plan: Plan) -> list[str]:
    return [*plan.outputs, *(["status"] if call.status else [])]


class _Differentiable(torch.autograd.Function):
    """All outputs of a call. What is kept for the gradient is what its operation takes, by name."""

    @staticmethod
    def forward(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_interop.run_direct(call, tensors).values())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        call, *tensors = inputs
        takes = _gradient_of(call).input_names
        plan = _interop.plan_of(call, tensors)
        outputs = dict(zip(_result_names(call, plan), output, strict=True))
        kept = {n: x for n, x in (dict(zip(call.given, tensors, strict=True)) | outputs).items() if n in takes}
        ctx.save_for_backward(*kept.values())
        ctx.call, ctx.dims, ctx.kept = call, plan.info["dims"], tuple(kept)
        ctx.outputs = {name: (x.shape, x.dtype, x.device) for name, x in outputs.items()}
        ctx.mark_non_differentiable(*(x for name, x in outputs.items() if f"d_{name}" not in takes))
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call, gradient = ctx.call, _gradient_of(ctx.call)
        needed = [name for name, needs in zip(call.given, ctx.needs_input_grad[1:], strict=True) if needs]
        wanted = [name for name in gradient.output_names if name in needed]
        have = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        have |= {f"d_{name}": ct for name, ct in zip(ctx.outputs, cotangents, strict=True) if ct is not None}
        results = {}
        if wanted and any(f"d_{name}" in have for name in ctx.outputs):
            for name, (shape, dtype, device) in ctx.outputs.items():  # what the operation cannot do without
                if any(f.name == f"d_{name}" and not f.optional for f in gradient.inputs):
                    have.setdefault(f"d_{name}", torch.zeros(shape, dtype=dtype, device=device))
            given = [name for name in gradient.input_names if name in have]
            backward = _gradient.gradient_call(call, ctx.dims, given, wanted)
            # Cotangents often are broadcast scalars, as that of a sum, which no kernel reads.
            results = _interop.run_direct(
                backward, [have[n].contiguous() if n.startswith("d_") else have[n] for n in given]
            )
        return None, *(results.get(name) for name in call.given)


def _run(call: Call, tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
    if not any(isinstance(x, torch.Tensor) for x in tensors):
        raise InvalidArgument(
            f"{call.operation}: inputs of ejkernel.torch must be torch tensors, got none; use ejkernel.{call.operation}"
        )
    tensors = _interop.framework_of(call, tensors).converted(call, tensors)
    for name, x in zip(call.given, tensors, strict=True):
        if torch.is_grad_enabled() and x.requires_grad and name not in _gradient_of(call).output_names:
            raise Unsupported(
                f"{call.operation}: there is no derivative for {name}, which requires one; pass {name}.detach()"
            )
    names = _result_names(call, _interop.plan_of(call, tensors))
    return dict(zip(names, _Differentiable.apply(call, *tensors), strict=True))


FUNCTIONS = {
    name: _functions.make_function(op, _run, "ejkernel.torch")
    for name, op in OPERATIONS.items()
    if op.gradient is not None
}
globals().update(FUNCTIONS)

__all__ = list(FUNCTIONS)

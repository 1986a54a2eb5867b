"""What lowered programs say of their calls, read back: labels, configs, and the calls themselves, which can be tuned.

A call stands in a program's text as a string literal of JSON (runtime/planned_call.h), so its quotes are escaped: as \22
by MLIR, as \22 or \" by XLA, and once more where the literal stands within another one, as in a GPU's backend_config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from ejkernel._library import Device, EjkernelError, InvalidArgument, Options, Plan, Spec, Unsupported

_CALL = re.compile(r"""\{(\\22|\\"|\\\\22|\\\\\\")version\1:\d+,\1(?:label|config)""")
_REST_OF_LITERAL = re.compile(rb"""(?:[^"\\]|\\.)*""", re.DOTALL)
_ESCAPE = re.compile(rb"""\\(?:([0-9A-Fa-f]{2})|(.))""", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t"}


def _unescaped(literal: bytes) -> bytes:
    def letter(escape: re.Match) -> bytes:
        digits, other = escape.groups()
        return bytes.fromhex(digits.decode()) if digits else _LETTERS.get(other, other)

    return _ESCAPE.sub(letter, literal)


def _call_at(text: bytes, begin: int, literals: int) -> tuple[Any, int]:
    """The call that stands there inside so many literals, and where its outermost literal ends."""
    end = _REST_OF_LITERAL.match(text, begin).end()
    content = _unescaped(text[begin:end])
    return (json.loads(content) if literals == 1 else _call_at(content, 0, literals - 1)[0]), end


def planned_calls_in(text: str) -> list[dict[str, Any]]:
    """The calls in a program's text (StableHLO or HLO), in order and as often as they stand there: "version", "label",
    "config", "call" and, where not all outputs are computed, "outputs"."""
    encoded = text.encode()
    pattern = re.compile(_CALL.pattern.encode())
    calls, at = [], 0
    while (found := pattern.search(encoded, at)) is not None:
        try:
            call, at = _call_at(encoded, found.start(), 2 if found[1].startswith(rb"\\") else 1)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"planned_calls_in: byte {found.start()} of the program: {error}") from error
        if not {"config", "call"} <= call.keys():
            raise InvalidArgument(
                f"planned_calls_in: byte {found.start()} of the program: config and call must be there"
            )
        calls.append(call)
    return calls


def _text_of(program: Any) -> str:
    if isinstance(program, str):
        return program
    return program.mlir_module() if isinstance(program, jax.export.Exported) else program.as_text()


class Label(str):
    """A label that knows the config of its call."""

    config: dict[str, int]

    def __new__(cls, text: str, config: Mapping[str, int]) -> Label:
        label = super().__new__(cls, text)
        label.config = dict(config)
        return label


def extract_labels_from_hlo_text(text: str) -> list[Label]:
    """The labels of a program's calls, "ejkernel.<operation>@<revision>:<digest>", in order and without repetition; where
    kernels share a problem, with the config of the first call. There are none in programs that were lowered with
    EJKERNEL_OPS_STAMP=none."""
    labels = {}
    for call in planned_calls_in(text):
        if "label" in call:
            labels.setdefault(call["label"], Label(call["label"], call["config"]))
    return list(labels.values())


def find_labels_in_lowered(lowered: Any) -> list[Label]:
    """The same for a jax.stages.Lowered, a Compiled or a jax.export.Exported."""
    return extract_labels_from_hlo_text(_text_of(lowered))


def labels_to_configs(labels: Any) -> dict[str, dict[str, int]]:
    """The config that a program has for each label: of labels that were found, or of a program or its text."""
    if not isinstance(labels, list):
        labels = find_labels_in_lowered(labels)
    return {str(label): label.config for label in labels}


def _plan_of(recorded: Mapping[str, Any]) -> Plan:
    """A call's kernel with whatever config is known for it; nothing is measured."""
    kind, _, ordinal = recorded["device"].partition(":")
    specs = {
        given["name"]: Spec(
            given["dtype"], tuple(given["shape"]), tuple(given["strides"]) if "strides" in given else None
        )
        for given in recorded["inputs"]
    }
    options = Options(kernel=recorded["kernel"], policy="heuristics")
    return Plan(recorded["operation"], specs, recorded["params"], options, Device(kind, int(ordinal or 0)))


def tune_plans(plans: Iterable[Plan], seconds: float) -> dict[str, dict[str, Any]]:
    """Tunes each problem once, for at most so long; by label what came of it (ejk_tune), with the operation's name. What
    cannot be tuned has "why_not" in its report, and stops nothing."""
    reports: dict[str, dict[str, Any]] = {}
    for plan in plans:
        info = plan.info
        if info["label"] in reports:
            continue
        try:
            report = plan.tune(seconds)
        except Unsupported as error:
            report = {"kernel": info["kernel"], "faster": False, "config": info["config"], "why_not": str(error)}
        reports[info["label"]] = {"operation": info["operation"]} | report
    if any(report["faster"] for report in reports.values()):
        jax.clear_caches()  # else a function that JAX has lowered before keeps its configs
    return reports


def autotune_lowered(lowered: Any, seconds: float = 2.0) -> dict[str, dict[str, Any]]:
    """Tunes every problem that a lowered program (or its text) has calls of, in order, for at most so long each; by label
    what came of it: "faster", "config", "heuristic", "ratio", "candidates" … A call that this machine has no device or
    kernel for has "why_not" alone.

    Who lowers the function again gets the configs that were found, in this process and, through the store, in later
    ones. `lowered` itself stays as it is. Where something was found JAX's caches are cleared."""
    distinct = {json.dumps(found["call"]): found for found in planned_calls_in(_text_of(lowered))}
    plans, refused = [], {}
    for found in distinct.values():
        try:
            plans.append(_plan_of(found["call"]))
        except EjkernelError as error:  # of a device or a kernel that is not here
            why = {"operation": found["call"]["operation"], "faster": False, "why_not": str(error)}
            refused[found.get("label", json.dumps(found["call"]))] = why  # EJKERNEL_OPS_STAMP=none: it has no label
    return refused | tune_plans(plans, seconds)

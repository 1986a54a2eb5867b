"""What lowered programs say of their calls is read back, and tuned."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import ejkernel
from ejkernel import _library

QUERY = jax.ShapeDtypeStruct((1, 40, 2, 16), jnp.float32)
FIELDS = {"block_q": 32, "block_k": 64}


def attention(query, **options):
    return ejkernel.flash_attention(query, query, query, causal=True, platform="cpu", **options).out


def gradient():
    """A new function, which no cache of JAX's knows."""
    return jax.jit(jax.grad(lambda query: attention(query).sum()))


def operations(labels):
    return [label.split("@")[0] for label in labels]


def programs():
    lowered = gradient().lower(QUERY)
    known = [export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    return {
        "StableHLO": lowered.as_text(),
        "StableHLO with locations": lowered.as_text(debug_info=True),
        "HLO": lowered.as_text(dialect="hlo"),
        "compiled": lowered.compile().as_text(),
        "exported": export.export(gradient(), disabled_checks=known)(QUERY).mlir_module(),
    }


def test_every_text_of_a_program_has_its_labels():
    for name, text in programs().items():
        labels = ejkernel.extract_labels_from_hlo_text(text)
        assert operations(labels) == ["ejkernel.flash_attention", "ejkernel.flash_attention_backward"], name
        calls = ejkernel.planned_calls_in(text)
        assert [call["label"] for call in calls] == labels
        assert calls[0]["call"]["inputs"][0] == {"name": "query", "dtype": "f32", "shape": [1, 40, 2, 16]}
        assert calls[1]["outputs"] == ["query", "key", "value"]
        assert ejkernel.labels_to_configs(text) == {call["label"]: call["config"] for call in calls}


def test_labels_of_lowered_compiled_and_exported_programs_are_equal():
    lowered = gradient().lower(QUERY)
    labels = ejkernel.find_labels_in_lowered(lowered)
    known = [export.DisabledSafetyCheck.custom_call("ejkernel_cpu")]
    exported = export.export(gradient(), disabled_checks=known)(QUERY)
    assert ejkernel.find_labels_in_lowered(lowered.compile()) == labels
    assert ejkernel.find_labels_in_lowered(exported) == labels
    assert ejkernel.find_labels_in_lowered(jax.jit(lambda x: x + 1).lower(QUERY)) == []


def test_a_label_is_of_the_problem_and_comes_once():
    def twice(query):
        return attention(query).sum() + attention(query, config=FIELDS).sum() + attention(query[:, :8]).sum()

    lowered = jax.jit(twice).lower(QUERY)
    assert len(ejkernel.planned_calls_in(lowered.as_text())) == 3
    labels = ejkernel.find_labels_in_lowered(lowered)
    assert len(labels) == 2
    assert list(ejkernel.labels_to_configs(lowered)) == labels
    named = ejkernel.labels_to_configs(jax.jit(lambda query: attention(query, config=FIELDS)).lower(QUERY))
    assert named[labels[0]] | FIELDS == named[labels[0]]


CALL = '{"version":1,"label":"ejkernel.toy@1:0","config":{"a":1},"call":{"text":"a \\" and a \\\\"}}'


@pytest.mark.parametrize("quote", [r"\22", r"\""])
def test_quotes_may_be_escaped_in_several_ways(quote):
    def inside(text, quote):
        return text.replace("\\", "\\\\").replace('"', quote)

    literal = 'call = "' + inside(CALL, quote) + '"'
    nested = '"attributes":"{' + inside(literal, r"\"") + '}"'
    for text in (literal, nested):
        assert ejkernel.planned_calls_in(f"{text} {text}") == [json.loads(CALL)] * 2
    assert ejkernel.planned_calls_in(inside(CALL, quote).replace("label", "other")) == []


@pytest.mark.parametrize("end", [40, -1])
def test_a_text_that_was_cut_is_refused(end):
    text = 'call = "' + CALL.replace("\\", "\\\\").replace('"', r"\22")
    with pytest.raises(ejkernel.InvalidArgument, match="byte 8 of the program"):
        ejkernel.planned_calls_in(text[:end])


def test_a_call_that_lacks_something_is_refused():
    with pytest.raises(ejkernel.InvalidArgument, match="config and call must be there"):
        ejkernel.planned_calls_in(r'"{\22version\22:1,\22config\22:{}}"')


def test_operation_kernel_and_config_are_in_the_metadata():
    text = gradient().lower(QUERY).compile().as_text()
    names = " ".join(re.findall('op_name="([^"]*)"', text))
    assert re.search(r"\bejkernel\.flash_attention\b", names) and "ejkernel.flash_attention_backward" in names
    assert 'ejkernel.kernel="cpu"' in text and 'ejkernel.config="block_q=' in text


def test_programs_say_nothing_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", "none")
    text = gradient().lower(QUERY).compile().as_text()
    assert "ejkernel.kernel" not in text and not re.search('op_name="[^"]*ejkernel\\.', text)


def test_problems_are_tuned_and_their_configs_kept():
    lowered = gradient().lower(QUERY)
    reports = ejkernel.autotune_lowered(lowered, seconds=0.2)
    assert list(reports) == ejkernel.find_labels_in_lowered(lowered)
    assert [report["operation"] for report in reports.values()] == ["flash_attention", "flash_attention_backward"]
    for report in reports.values():
        assert report["published"] and report["kernel"] == "cpu" and report["candidates"]
    configs = {label: report["config"] for label, report in reports.items()}
    assert ejkernel.labels_to_configs(gradient().lower(QUERY)) == configs


@pytest.fixture
def tuner_that_finds(monkeypatch):
    """In the tuner's place one that always finds the same config."""

    def tune(plan, seconds):
        if not plan.info["config"]:
            raise ejkernel.Unsupported("there is nothing to tune")
        plan.set_config(FIELDS)
        return {"kernel": plan.info["kernel"], "faster": True, "config": plan.info["config"] | FIELDS}

    monkeypatch.setattr(_library.Plan, "tune", tune)


def test_calls_of_other_machines_stop_nothing(tuner_that_finds):
    text = gradient().lower(jax.ShapeDtypeStruct((1, 42, 2, 24), jnp.float32)).as_text()
    here, there = (f'backward","device":"{device}"'.replace('"', "\\22") for device in ("cpu", "cuda:7"))
    assert here in text
    elsewhere = text.replace(here, there)
    refused, tuned = ejkernel.autotune_lowered(elsewhere).values()
    assert refused["operation"] == "flash_attention_backward" and "cuda" in refused["why_not"]
    assert tuned["operation"] == "flash_attention" and tuned["faster"]


def test_a_function_that_is_lowered_again_has_what_was_found(tuner_that_finds):
    query = jax.ShapeDtypeStruct((1, 41, 2, 24), jnp.float32)
    function = gradient()
    lowered = function.lower(query)
    before = ejkernel.labels_to_configs(lowered)
    reports = ejkernel.autotune_lowered(lowered.compile().as_text())
    after = ejkernel.labels_to_configs(function.lower(query))
    assert after == {label: report["config"] for label, report in reports.items()}
    assert after == {label: config | FIELDS for label, config in before.items()} != before
    concrete = np.ones(query.shape, np.float32)
    np.testing.assert_allclose(function(concrete), lowered.compile()(concrete), rtol=1e-5, atol=1e-5)


def test_calls_of_a_function_are_tuned(tuner_that_finds):
    def function(query):
        pooled = ejkernel.mean_pooling(query[0].reshape(1, 43, -1), platform="cpu").out
        named = attention(query, config={"block_q": 16})
        return attention(query).sum() + pooled.sum() + named.sum() + attention(query, policy="heuristics").sum()

    query = jax.ShapeDtypeStruct((1, 43, 2, 24), jnp.float32)
    pooling, tuned = ejkernel.tune(function, query)
    assert tuned["operation"] == "flash_attention" and tuned["config"] | FIELDS == tuned["config"]
    assert tuned["label"] in ejkernel.find_labels_in_lowered(jax.jit(function).lower(query))
    assert pooling["operation"] == "mean_pooling" and not pooling["faster"]
    assert "nothing to tune" in pooling["why_not"]
    assert ejkernel.tune(lambda x: ejkernel.mean_pooling(x, platform="xla"), jnp.ones((2, 3, 4))) == []


# ---- explain ----


def test_every_call_is_explained_wherever_it_stands():
    def function(query):
        def layer(hidden, _):
            return jax.lax.cond(hidden.sum() > 0, attention, lambda x: x, hidden), None

        hidden, _ = jax.lax.scan(jax.checkpoint(layer), query, length=2)
        return hidden.sum()

    text = ejkernel.explain(jax.jit(jax.grad(function)), QUERY)
    assert (
        "flash_attention(query f32[1, 40, 2, 16], key f32[1, 40, 2, 16]" in text and ", causal=True) -> out f32" in text
    )
    assert "flash_attention_backward(query f32[1, 40, 2, 16]" in text
    assert "  kernel cpu block_q=" in text and "    tier 6   heuristics      hit: " in text


def test_numbers_and_switches_are_a_calls_own():
    text = ejkernel.explain(ejkernel.flash_attention, *(QUERY,) * 3, causal=True, sliding_window=4, platform="cpu")
    assert "sliding_window=(4, 0)" in text and "causal=True" in text and "asks for platform cpu" in text
    assert "f32[3, 4]" in ejkernel.explain(
        lambda x, chunk_size: ejkernel.mean_pooling(x["a"], chunk_size=chunk_size),
        {"a": jax.ShapeDtypeStruct((3, 2, 4), jnp.float32)},
        None,
    )


def test_equal_calls_are_explained_once_and_slices_as_one_call():
    text = ejkernel.explain(lambda query: attention(query) + attention(query), QUERY)
    assert text.count("flash_attention(") == 1 and "(2 times)" in text
    batch = jax.ShapeDtypeStruct((3, 5, 1, 16), jnp.float32)
    assert "query f32[15, 8, 2, 16]" in ejkernel.explain(
        jax.vmap(jax.vmap(lambda row: attention(jnp.broadcast_to(row, (1, 8, 2, 16))))), batch
    )


def test_what_xla_serves_and_what_is_no_call_is_said():
    x = jnp.ones((2, 3, 4))
    asked = ejkernel.explain(lambda x: ejkernel.mean_pooling(x, platform="xla"), x)
    assert "mean_pooling(x f32[2, 3, 4]) -> out f32[2, 4]\n  kernel xla: jax.numpy, compiled by XLA; asked for" == asked
    reference = ejkernel.explain(lambda x: ejkernel.mean_pooling(x, platform="reference"), x)
    assert "  kernel reference, from heuristics" in reference
    assert ejkernel.explain(jnp.sin, x).startswith("no calls of ejkernel on JAX arrays;")


def test_explanation_and_program_agree_where_only_a_reference_would_serve():
    x = jax.ShapeDtypeStruct((2, 3, 4), jnp.float64)
    with jax.enable_x64(True):
        function = jax.jit(lambda x: ejkernel.mean_pooling(x))
        text = ejkernel.explain(function, x)
        assert ejkernel.find_labels_in_lowered(function.lower(x)) == []
    assert "  kernel xla: " in text and "reference" in text


def test_explain_takes_numpys_numbers_for_numbers():
    x = jnp.ones((1, 8, 2, 16))
    text = ejkernel.explain(
        ejkernel.flash_attention, x, x, x, softmax_scale=1 / np.sqrt(16), sliding_window=np.int32(4)
    )
    assert "softmax_scale=0.25" in text

"""Where a call of a Python kernel gets its config from: seven tiers, the first that answers wins."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any

from ejkernel import _settings
from ejkernel._library import NO_OPTIONS, InvalidArgument, NoConfig
from ejkernel._notices import say_once
from ejkernel.ops.config.cache import ConfigCache, overlaid
from ejkernel.ops.config.persistent import PersistentCache
from ejkernel.ops.core.kernel import Invocation, Kernel, candidates_of, config_type_of, heuristic_of
from ejkernel.ops.core.measure import Tuner

_NAMES = {(True, True): "autotune", (False, True): "heuristics", (False, False): "cached"}


@dataclasses.dataclass(frozen=True)
class AutotunePolicy:
    allow_autotune: bool = True
    allow_heuristics: bool = True

    @classmethod
    def named(cls, name: str) -> AutotunePolicy:
        for allowed, known in _NAMES.items():
            if known == name:
                return cls(*allowed)
        raise InvalidArgument(f"ejkernel: a policy must be one of {', '.join(_NAMES.values())}, got '{name}'")


@contextlib.contextmanager
def policy_override(*, autotune: bool = True, heuristics: bool = True) -> Iterator[None]:
    """Within the scope, and nowhere else, configs of Python kernels and of the library's operations may be measured,
    and may come from heuristics, or not. Read when a call is traced."""
    if (autotune, heuristics) not in _NAMES:
        raise InvalidArgument("ejkernel: a policy that allows autotune allows heuristics; got heuristics=False alone")
    with _settings.policy(_NAMES[autotune, heuristics]):
        yield


def _policy_of_environment() -> AutotunePolicy:
    return AutotunePolicy.named(os.environ.get("EJKERNEL_AUTOTUNE_POLICY") or "autotune")


@dataclasses.dataclass(frozen=True)
class Selection:
    """A config and where it came from: override, overlay, memory, persistent, autotune or heuristics."""

    config: Any
    tier: str


class ConfigSelectorChain:
    """The tiers, with a memory cache, a persistent cache or none, and whether measuring is allowed; scopes of
    `policy_override` go before what is said here, the environment (EJKERNEL_AUTOTUNE_POLICY) after it."""

    def __init__(
        self,
        cache: ConfigCache | None = None,
        policy: AutotunePolicy | None = None,
        tuner: Tuner | None = None,
        persistent: PersistentCache | None = None,
        *,
        autotune: bool | None = None,
    ):
        self.cache = ConfigCache() if cache is None else cache
        self.persistent = persistent
        self.tuner = tuner or Tuner()
        self._policy = policy if autotune is None else AutotunePolicy(allow_autotune=autotune)
        self._measuring = threading.RLock()  # one at a time, else they disturb each other

    @property
    def policy(self) -> AutotunePolicy:
        scoped = _settings.apply("", NO_OPTIONS).policy
        return AutotunePolicy.named(scoped) if scoped else self._policy or _policy_of_environment()

    def choose(self, invocation: Invocation, kernel: Kernel | None = None) -> Any:
        """The config alone."""
        return self.select(invocation if kernel is None else dataclasses.replace(invocation, kernel=kernel)).config

    def select(self, invocation: Invocation) -> Selection:
        if invocation.override_cfg is not None:
            return Selection(invocation.override_cfg, "override")
        key = _key(invocation)
        if key is not None and (found := self._known(key, invocation)) is not None:
            return found
        policy = self.policy
        if policy.allow_autotune and key is not None and (config := self._measured(key, invocation)) is not None:
            return Selection(config, "autotune")
        if policy.allow_heuristics and (config := heuristic_of(invocation)) is not None:
            return Selection(config, "heuristics")
        raise NoConfig(
            f"{invocation.kernel.op_id}: no config: none was given, overlaid or cached, autotune is "
            f"{_allowed(policy.allow_autotune)}, heuristics are {_allowed(policy.allow_heuristics)}; pass cfg=, or "
            "give the kernel a heuristic_cfg"
        )

    def _known(self, key: str, invocation: Invocation) -> Selection | None:
        if (config := overlaid(key)) is not None:
            return Selection(config, "overlay")
        if (config := self.cache.get(key)) is not None:
            return Selection(config, "memory")
        if self.persistent is not None:
            if (config := self.persistent.get(key, config_type_of(invocation.kernel))) is not None:
                self.cache.put(key, config)
                return Selection(config, "persistent")
        return None

    def measure(self, invocation: Invocation) -> Any:
        """The fastest of the candidates and the kernel's own choice, which from now on is the config of such calls,
        whatever was kept before; the only candidate where the kernel chooses none; None where there is no choice, or none
        of them runs."""
        candidates, own = candidates_of(invocation), heuristic_of(invocation)
        if all(c == own for c in candidates):
            return None
        if own is None and len(candidates) == 1:
            return candidates[0]
        with self._measuring:
            config = self.tuner.best(invocation, candidates)
            if config is not None:
                self._keep(invocation.key, config)
            return config

    def _measured(self, key: str, invocation: Invocation) -> Any:
        with self._measuring:
            found = self.cache.get(key)  # another thread was faster
            return self.measure(invocation) if found is None else found

    def _keep(self, key: str, config: Any) -> None:
        self.cache.put(key, config)
        if self.persistent is None:
            return
        try:
            self.persistent.put(key, config)
        except (OSError, TypeError) as error:
            say_once(f"ejkernel: configs are kept in memory only: {error}")


def _key(invocation: Invocation) -> str | None:
    try:
        return invocation.key
    except TypeError as error:
        say_once(f"{invocation.kernel.op_id}: its configs cannot be cached or measured: {error}; give it a key_builder")
        return None


def _allowed(yes: bool) -> str:
    return "allowed but gave none" if yes else "off"

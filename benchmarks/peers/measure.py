"""How peers are timed beside each other in one process: interleaved, in random order, medians with quartiles."""

import json
import math
import random
import statistics
import time


class Peer:
    """A call on the host that is done when it returns. One sample is the mean of as many calls as `sample_seconds` holds,
    after one that is not timed: it wakes the peer's threads and takes back the caches from whoever ran before. `result` is
    what the last call returned."""

    def __init__(self, name, call, sample_seconds=0.02):
        self.name, self.call, self.sample_seconds = name, call, sample_seconds
        self.estimate = self.seconds_of(1)  # with what is done once only: pages, packed constants, thread pools
        if self.estimate < 0.5:
            self.estimate = self.seconds_of(1)

    def seconds_of(self, calls):
        begin = time.perf_counter()
        for _ in range(calls):
            self.result = self.call()
        return (time.perf_counter() - begin) / calls

    def measure(self):
        if self.estimate < self.sample_seconds:
            self.call()
        return self.seconds_of(max(1, round(self.sample_seconds / self.estimate)))


def compare(peers, seconds, min_rounds=3, max_rounds=50):
    """{name: {"seconds", "low", "high", "rounds"}}: median and quartiles. Rounds until `seconds` have passed."""
    samples = {peer.name: [] for peer in peers}
    end = time.perf_counter() + seconds
    for done in range(max_rounds):
        if done >= min_rounds and time.perf_counter() >= end:
            break
        for peer in random.sample(peers, len(peers)):
            samples[peer.name].append(peer.measure())
    return {name: summary(all_) for name, all_ in samples.items()}


def spread(times):
    """Half the distance of the quartiles, as a part of the median."""
    return (times["high"] - times["low"]) / 2 / times["seconds"]


def summary(samples):
    ordered = sorted(samples)
    return {
        "seconds": statistics.median(ordered),
        "low": ordered[len(ordered) // 4],
        "high": ordered[-1 - len(ordered) // 4],
        "rounds": len(ordered),
    }


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def write(path, record):
    with open(path, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")

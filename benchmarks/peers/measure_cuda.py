"""How calls on a CUDA device are timed beside each other: short bursts between pauses, in random order, by device events.

Calls that alternate without a pause pass clocks and power from one to the next, and the faster of two looks slower than it
is. So each burst follows a pause, and everything that is to be compared takes its bursts in one random order. One turn of a
contender's data is not timed: it fills the queue. A call below 200 microseconds is replayed from a graph, because launching it
from Python takes as long as it does; a graph that does not hold every call is refused, and the call timed without one.
"""

import ctypes
import random
import time

import torch

import measure

PAUSE_SECONDS = 0.02
BURST_SECONDS = 0.012
SUSTAINED_SECONDS = 0.3
SUSTAINED_PAUSE_SECONDS = 0.2
GRAPH_BELOW_SECONDS = 200e-6
GRAPH_SECONDS = 1e-3  # of work in one graph, beside which launching it is nothing
COLD_BYTES = 256 * 2**20  # what lies between two uses of the same data: four times the largest L2 there is so far


class Contender:
    """Something to be timed. `turn` makes one call on each of `calls` copies of the data, on torch's current stream."""

    def __init__(self, name, turn, calls, may_capture=True):
        self.name, self.turn, self.calls = name, turn, calls
        self.graph = None
        self.samples = []
        self._seconds_of(1)  # compiles and loads
        self.estimate = self._seconds_of(3)
        if may_capture and self.estimate < GRAPH_BELOW_SECONDS:
            self._capture(max(1, round(GRAPH_SECONDS / (self.estimate * calls))))
            self.estimate = self._seconds_of(3)

    def _capture(self, turns):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries make what they need for a stream at their first call on it
            self.turn()
        torch.cuda.current_stream().wait_stream(side)
        graph, calls = torch.cuda.CUDAGraph(keep_graph=True), self.calls * turns
        with torch.cuda.graph(graph, stream=side):
            for _ in range(turns):
                self.turn()
        # What went to a stream of its own is not in the graph, whose replay would then be timed instead.
        if num_nodes(graph) >= calls:
            self.graph, self.turn, self.calls = graph, graph.replay, calls

    def _seconds_of(self, turns, each=None):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.turn()
        begin.record()
        for _ in range(turns):
            self.turn()
            if each:
                each()
        end.record()
        while each and not end.query():
            each()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / (turns * self.calls)

    def turns_in(self, seconds):
        return max(1, round(seconds / (self.estimate * self.calls)))

    def burst(self):
        torch.cuda.synchronize()
        time.sleep(PAUSE_SECONDS)
        self.samples.append(self._seconds_of(self.turns_in(BURST_SECONDS)))

    def sustain(self, monitor):
        """Seconds per call, SM clock and power while it runs back to back."""
        torch.cuda.synchronize()
        time.sleep(SUSTAINED_PAUSE_SECONDS)
        monitor.start()
        seconds = self._seconds_of(self.turns_in(SUSTAINED_SECONDS), monitor.sample)
        return {"seconds": seconds, **monitor.medians()}

    def times(self):
        return dict(measure.summary(self.samples), graph=self.graph is not None)


def num_nodes(graph):
    """Launches, copies and all else that a captured graph holds; each call is at least one."""
    count = ctypes.c_size_t()
    code = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    if code != 0:
        raise RuntimeError(f"cuGraphGetNodes returned {code}")
    return count.value


def run_bursts(contenders, repeats, order=random):
    """Every contender's bursts: a random order of all of them, `repeats` times."""
    for _ in range(repeats):
        for contender in order.sample(contenders, len(contenders)):
            contender.burst()


class Monitor:
    """SM clock (MHz) and power (W) through the driver's management library, read at most every 20 ms. Where it is missing,
    `why_not` says so and there are no figures."""

    INTERVAL_SECONDS = 0.02
    CLOCK_SM = 1

    def __init__(self):
        self.why_not, self.driver = None, None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._call("nvmlInit_v2")
            text = ctypes.create_string_buffer(96)
            self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
            self.driver = text.value.decode()
            self.handle = ctypes.c_void_p()
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.handle))
        except (OSError, RuntimeError, AttributeError) as error:
            self.why_not = str(error)
        self.start()

    def _call(self, name, *arguments):
        code = getattr(self.nvml, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def start(self):
        self.clocks, self.watts, self.next = [], [], 0.0

    def sample(self):
        now = time.perf_counter()
        if self.why_not or now < self.next:
            return
        self.next = now + self.INTERVAL_SECONDS
        clock, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self.handle, self.CLOCK_SM, ctypes.byref(clock))
        self._call("nvmlDeviceGetPowerUsage", self.handle, ctypes.byref(milliwatts))
        self.clocks.append(clock.value)
        self.watts.append(milliwatts.value / 1e3)

    def medians(self):
        return {"sm_mhz": median_or_none(self.clocks), "watts": median_or_none(self.watts)}


def median_or_none(values):
    return measure.summary(values)["seconds"] if values else None


def copies_for(bytes_of_one):
    """Copies of a call's data that make one turn long enough to find its data cold, at most 32."""
    return min(32, -(-COLD_BYTES // bytes_of_one))

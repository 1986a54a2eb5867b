"""Writes golden.json from the package's own model, or compares with it. The sound is made here as speech.cpp makes it.

The package's TorchScript file has the model's code and other weights than silero_vad_16k.safetensors (an earlier or later
training): it is given the latter.

Neither the library nor its build needs this: it wants PyTorch. With the package unpacked into .deps/models:

    .deps/peers/bin/python examples/silero_vad/goldens.py .deps/models/silero_vad           # compare
    .deps/peers/bin/python examples/silero_vad/goldens.py .deps/models/silero_vad --write   # write
"""

import json
import math
import pathlib
import struct
import sys

import torch

GOLDEN = pathlib.Path(__file__).with_name("golden.json")
RATE = 16000
CHUNK = 512
VOWELS = {
    "a": (730, 1090, 2440),
    "i": (270, 2290, 3010),
    "u": (300, 870, 2240),
    "e": (530, 1840, 2480),
    "o": (570, 840, 2410),
    "@": (500, 1500, 2500),
}
BANDWIDTHS = (80, 100, 140)
SCORE = (
    "- .5 a .18 - .04 i .16 s .09 e .2 - .05 o .22 u .14 - .03 a .25 - .8 s .1 i .2 @ .1 - .04 a .2 u .18 - .03 e .3 - .7"
).split()


def glottal_flow(phase):
    opening, closing = 0.4, 0.16
    if phase < opening:
        return 0.05 * math.pi / opening * math.sin(math.pi * phase / opening)
    if phase >= opening + closing:
        return 0.0
    return -0.05 * math.pi / closing * math.sin(math.pi * (phase - opening) / (2 * closing))


def synthesise_speech():
    samples, state, formants = [], [[0.0, 0.0] for _ in BANDWIDTHS], list(VOWELS["@"])
    phase = voice = hiss = 0.0
    seed = 1
    for what, seconds in zip(SCORE[::2], SCORE[1::2]):
        for _ in range(round(float(seconds) * RATE)):
            t = len(samples) / RATE
            if what in VOWELS:
                formants = [f + (target - f) * 0.002 for f, target in zip(formants, VOWELS[what])]
            voice += ((what in VOWELS) - voice) * 0.004
            hiss += ((what == "s") - hiss) * 0.004
            phase += (120 + 25 * math.sin(2 * math.pi * 0.7 * t) + 4 * math.sin(2 * math.pi * 5 * t)) / RATE
            phase -= math.floor(phase)
            seed = (seed * 1103515245 + 12345) % 2**31
            breath = seed / 2**30 - 1
            x = voice * (glottal_flow(phase) + 0.02 * breath)
            for memory, frequency, bandwidth in zip(state, formants, BANDWIDTHS):
                radius = math.exp(-math.pi * bandwidth / RATE)
                c = 2 * radius * math.cos(2 * math.pi * frequency / RATE)
                x = (1 - c + radius * radius) * x + c * memory[0] - radius * radius * memory[1]
                memory[:] = x, memory[0]
            samples.append(0.6 * x + 0.05 * hiss * breath + 0.0005 * breath)
    return torch.tensor(samples, dtype=torch.float64).float()


# The names of the safetensors file in the order of the TorchScript model's.
WEIGHTS = (
    "stft_conv.weight",
    *(f"conv{n}.{part}" for n in (1, 2, 3, 4) for part in ("weight", "bias")),
    *(f"lstm_cell.{part}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")),
    *(f"final_conv.{part}" for part in ("weight", "bias")),
)


def load_model(folder):
    model = torch.jit.load(folder / "silero_vad.jit").eval()
    data = (folder / "silero_vad_16k.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    state = model._model.state_dict()  # of the half that serves 16 kHz
    for name, theirs in zip(WEIGHTS, state.values(), strict=True):
        begin, end = header[name]["data_offsets"]
        theirs.copy_(torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(header[name]["shape"]))
    model.reset_states()
    return model


def main():
    model = load_model(pathlib.Path(sys.argv[1]))
    chunks = synthesise_speech().unfold(0, CHUNK, CHUNK)
    with torch.no_grad():
        probabilities = [model(chunk[None], RATE).item() for chunk in chunks]
    if "--write" in sys.argv:
        GOLDEN.write_text(json.dumps([round(p, 6) for p in probabilities], indent=0) + "\n")
        return
    difference = max(abs(a - b) for a, b in zip(probabilities, json.loads(GOLDEN.read_text()), strict=True))
    print(f"golden.json: largest difference {difference:.1e}")
    sys.exit(difference > 1e-6)


if __name__ == "__main__":
    main()

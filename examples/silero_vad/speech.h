// A few seconds of something that sounds like speech, made here: no recording is needed, and everybody has the same
// one.
#pragma once

#include <vector>

namespace silero_vad {

inline constexpr int kSampleRate = 16000;

/// Two utterances of vowels and hisses between silences: a glottal pulse through three resonators, whose frequencies
/// glide from vowel to vowel (formants of men's voices: Peterson and Barney, 1952).
std::vector<float> synthesise_speech();

}  // namespace silero_vad

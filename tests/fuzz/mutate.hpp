#pragma once

#include <random>
#include <string>
#include <vector>

namespace stepcast::fuzz {

constexpr std::size_t kLongest = 8192;  // bytes of an input

/// A valid input, changed in one to eight places: bytes, words, numbers and lines are replaced, doubled, cut
/// or taken from another input.
std::string mutated(const std::vector<std::string>& seeds, std::mt19937_64& random);

}  // namespace stepcast::fuzz

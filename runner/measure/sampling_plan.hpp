#pragma once

#include <cstddef>
#include <vector>

/// What to measure next within a budget of time. Pure: no clock, no message.
namespace stepcast {

/// By item: in how many rounds it takes part, so that all together take at most `left_s`: at most `rounds`, at
/// least `least`. The item that would take longest loses a round first.
/// \param cost_s of an item in one round
std::vector<int> rounds_within(const std::vector<double>& cost_s, int rounds, int least, double left_s);

/// The items that lack undisturbed samples to repeat in one turn of about `turn_s`: those on which least time was
/// spent so far, so that long ones, of which few samples can be undisturbed, do not use up what short ones need.
/// None when not even the first fits into `left_s`.
/// \param lacking indices of items
std::vector<std::size_t> items_to_repeat(const std::vector<std::size_t>& lacking,
                                         const std::vector<double>& cost_s,
                                         const std::vector<double>& spent_s, double turn_s, double left_s);

}  // namespace stepcast

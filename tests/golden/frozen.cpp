#include "tests/golden/frozen.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepcast::golden {
namespace {

std::string digits(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

/// FNV-1a of 64 bits over texts.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(0);
  }
  void add(double value) { add(std::string_view(digits(value))); }
  [[nodiscard]] std::string text() const {
    std::array<char, 20> result{};
    std::snprintf(result.data(), result.size(), "%016llx", static_cast<unsigned long long>(state_));
    return result.data();
  }

 private:
  void mix(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Hash that does not depend on the order of the lines.
std::string hash_of(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  Hash hash;
  for (const std::string& line : lines) hash.add(line);
  return hash.text();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

Json step_times(const Json& prediction) {
  const auto times = prediction.at("step_time_s").get<std::vector<std::vector<double>>>();
  std::vector<double> slowest = times.at(0);
  double least = slowest.at(0);
  double most = least;
  Hash hash;
  for (const std::vector<double>& rank : times) {
    hash.add("rank");
    for (std::size_t step = 0; step < rank.size(); ++step) {
      hash.add(rank[step]);
      slowest.at(step) = std::max(slowest[step], rank[step]);
      least = std::min(least, rank[step]);
      most = std::max(most, rank[step]);
    }
  }
  hash.add("warm-up");
  for (const Json& time : prediction.at("warmup_step_time_s")) hash.add(time.get<double>());
  return {{"ranks", times.size()}, {"steps", slowest.size()}, {"median", median(slowest)}, {"min", least},
          {"max", most},           {"hash", hash.text()}};
}

/// Sums of the parts over the ranks.
Json breakdown(const Json& ranks) {
  std::map<std::string, double> sums;
  Hash hash;
  for (const Json& rank : ranks) {
    std::map<std::string, double> parts;  // sorted by name
    for (const auto& [part, time] : rank.items()) parts[part] = time.get<double>();
    for (const auto& [part, time] : parts) {
      sums[part] += time;
      hash.add(part);
      hash.add(time);
    }
  }
  Json result(sums);
  result["hash"] = hash.text();
  return result;
}

Json memory(const Json& ranks) {
  Json peaks = Json::array();
  Hash hash;
  for (const Json& rank : ranks) {
    peaks.push_back(rank.at("peak_bytes"));
    std::map<std::string, double> categories;
    for (const auto& [category, bytes] : rank.at("at_peak_bytes").items()) categories[category] = bytes;
    for (const auto& [category, bytes] : categories) {
      hash.add(category);
      hash.add(bytes);
    }
    for (const char* row : {"time_s", "live_bytes"})
      for (const Json& value : rank.at(row)) hash.add(value.get<double>());
  }
  return {{"peak_bytes", peaks}, {"hash", hash.text()}};
}

Json spans(const Json& all) {
  std::vector<std::string> names;
  std::vector<std::string> dated;
  double ends = 0.0;
  for (const Json& span : all) {
    std::string line = std::to_string(span.at("rank").get<int>()) + " " +
                       span.at("stream").get<std::string>() + " " + span.at("name").get<std::string>();
    names.push_back(line);
    dated.push_back(line.append(" ")
                        .append(digits(span.at("start_s").get<double>()))
                        .append(" ")
                        .append(digits(span.at("end_s").get<double>())));
    ends += span.at("end_s").get<double>();
  }
  return {{"count", all.size()},
          {"sum_of_ends_s", ends},
          {"names_hash", hash_of(std::move(names))},
          {"hash", hash_of(std::move(dated))}};
}

Json frozen_step(const Json& prediction) {
  Json result = {{"step_time_s", step_times(prediction)},
                 {"bytes_sent_per_rank", prediction.at("bytes_sent_per_rank_bytes")},
                 {"trivial_step_time_s", prediction.at("forecast").at("baseline_step_time_s")},
                 {"breakdown_s", breakdown(prediction.at("breakdown"))},
                 {"memory", memory(prediction.at("memory"))},
                 {"spans", spans(prediction.at("spans"))}};
  for (const char* note : {"collective_fidelity", "nccl"})
    if (prediction.at("notes").contains(note)) result[note] = prediction.at("notes").at(note);
  return result;
}

/// Rows by collective, one per message: bytes, time and, if there is a choice, the algorithm.
Json frozen_bench(const Json& prediction) {
  Json rows = Json::object();
  Hash hash;
  for (const Json& row : prediction.at("rows")) {
    const auto times = row.at("time_s").get<std::vector<double>>();
    for (const double time : times) hash.add(time);
    Json& of_collective = rows[row.at("collective").get<std::string>()];
    of_collective.push_back({row.at("message_bytes"), median(times)});
    if (row.contains("algorithm")) of_collective.back().push_back(row.at("algorithm"));
  }
  return {{"rows", rows}, {"hash", hash.text()}};
}

}  // namespace

Json frozen(const Json& prediction) {
  return prediction.contains("rows") ? frozen_bench(prediction) : frozen_step(prediction);
}

}  // namespace stepcast::golden

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/replay/replay.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/validation/case_prediction.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr const char* kCluster = "h100x4-nvlink";
constexpr double kGiga = 1e9;
constexpr int kFitRounds = 2;         // times are straight lines in what is fitted: the first one solves them
constexpr double kRounding = 0.0005;  // the source prints milliseconds
constexpr std::array kPinned{50.0, 45.0, 55.0};  // GB/s that copies over PCIe gen5 x16 reach, pinned memory
constexpr std::array kChunkMebibytes{64.0, 16.0, 256.0};

std::string short_integer(double value) { return std::to_string(static_cast<int>(value)); }

/// A method of the broadcast and what the source calls it.
struct Method {
  const char* name;
  const char* text;
};
constexpr std::array<Method, 3> kMethods{
    {{"sequential", "every GPU copies from the host, one after another"},
     {"relay", "host to GPU 0, then GPU 0 to each other GPU over NVLink, one after another"},
     {"chunked",
      "host to GPU 0 in chunks on asynchronous streams, each chunk passed on over NVLink while the next "
      "arrives"}}};

/// The method of a row, by either of its names.
const char* method_of(const PublishedRow& row) {
  const std::string text = row.text("method", row.text("strategy", ""));
  std::vector<std::string> known;
  for (const Method& method : kMethods) {
    if (text == method.name || text == method.text) return method.name;
    known.emplace_back(method.name);
  }
  row.fail("key 'method': " + unknown_name("method of the broadcast", text, known));
}

/// The rows that are fitted, as they may have been before they were rounded.
struct FitTimes {
  double sequential_s = 0.0;
  double relay_s = 0.0;
};

/// What the fit finds out.
struct HostCopies {
  double buffer_bytes = 0.0;
  double pageable_bytes_per_s = 0.0;
};

/// The experiment: one buffer of the host goes to the memories of the four GPUs of a node, by three methods.
///
/// How large the buffer is, the source does not say. The two fitted rows give two numbers, by replaying their
/// own Schedules: what a copy from pageable memory takes (a quarter of `sequential`), and what a copy between
/// two GPUs takes (a third of `relay` without one copy from the host). The buffer is then as large as that
/// time and the rate of NVLink say. The third row copies from pinned memory, of which the fitted rows say
/// nothing: its rate is taken from what PCIe gen5 x16 is known to reach.
class BroadcastCase {
 public:
  explicit BroadcastCase(const PublishedCase& published)
      : published_(published), cluster_(load_cluster(kCluster)), device_(device_model("h100-sxm")) {
    for (const PublishedRow& row : published.rows) {
      const std::string method = method_of(row);
      if (!row.fit) continue;
      if (method == "chunked")
        row.fail("key 'role': found fit, expected predict: only sequential and relay are fitted");
      double& time = method == "sequential" ? fit_.sequential_s : fit_.relay_s;
      time = row.number("time_s").value_or(0.0);
    }
    if (fit_.sequential_s <= 0.0 || fit_.relay_s <= 0.25 * fit_.sequential_s)
      published.fail(
          "rows of role fit: expected time_s of sequential, and a longer one than a quarter of it of relay");
  }

  CasePrediction predict() {
    const BytesPerSecond effective = device_.nvlinks * device_.nvlink_bandwidth;
    const BytesPerSecond raw = device_.nvlinks * device_.nvlink_raw;
    std::vector<Candidate> candidates;
    for (const BytesPerSecond nvlink : {effective, raw}) {
      nvlink_ = nvlink;
      set_links(LinkKind::kNvLink, nvlink);
      for (const double rounded : {0.0, -1.0, 1.0}) add_candidates(rounded, nvlink == effective, candidates);
    }
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  /// \param rounded by which part of half a millisecond the difference of the two rows was rounded down
  void add_candidates(double rounded, bool usual_nvlink, std::vector<Candidate>& candidates) {
    FitTimes times = fit_;
    times.relay_s += rounded * kRounding;
    times.sequential_s -= rounded * kRounding;
    if (times.relay_s <= 0.25 * times.sequential_s) return;  // nothing is left for NVLink
    const HostCopies found = fit(times);
    const double buffer = found.buffer_bytes;
    least_buffer_ = candidates.empty() ? buffer : std::min(least_buffer_, buffer);
    most_buffer_ = std::max(most_buffer_, buffer);
    const double sequential = replayed("sequential", found);
    const double relay = replayed("relay", found);
    for (const double pinned : kPinned)
      for (const double chunk : kChunkMebibytes) {
        Candidate candidate;
        candidate.choice = {{"nvlink", to_text(nvlink_)},
                            {"rounding_of_the_fit_rows", rounded == 0.0  ? "none"
                                                         : rounded > 0.0 ? "largest buffer"
                                                                         : "smallest buffer"},
                            {"pinned_rate", to_text(BytesPerSecond(pinned * kGiga))},
                            {"chunk", to_text(Bytes(chunk * kMebi))}};
        candidate.implausibility = (usual_nvlink ? 0.0 : 1.0) + (rounded == 0.0 ? 0.0 : 1.0) +
                                   (pinned == kPinned.front() ? 0.0 : 1.0) +
                                   (chunk == kChunkMebibytes.front() ? 0.0 : 1.0);
        candidate.fitted = "buffer " + to_text(Bytes(buffer)) + ", pageable copies " +
                           to_text(BytesPerSecond(found.pageable_bytes_per_s));
        const double third = chunked(found, BytesPerSecond(pinned * kGiga), Bytes(chunk * kMebi));
        for (const PublishedRow& row : published_.rows) {
          const std::string method = method_of(row);
          candidate.rows.push_back({{"time_s",
                                     {method == "sequential" ? sequential
                                      : method == "relay"    ? relay
                                                             : third}}});
          candidate.alpha_beta.push_back(
              {{"time_s", {one_after_another(method, found, BytesPerSecond(pinned * kGiga))}}});
        }
        candidates.push_back(std::move(candidate));
      }
  }

  /// Corrects buffer B and rate r by what the replays miss, p being the rate between two of n GPUs:
  ///
  ///     sequential = n (B / r + c)
  ///     relay      = B / r + c + (n - 1) (B / p + c')
  ///
  /// so that the misses give B / r and B / p at once.
  [[nodiscard]] HostCopies fit(const FitTimes& times) const {
    const auto devices = static_cast<double>(cluster_.places().size());
    double host_s = times.sequential_s / devices;
    double device_s = (times.relay_s - host_s) / (devices - 1.0);
    HostCopies found;
    for (int round = 0; round <= kFitRounds; ++round) {
      found.buffer_bytes = device_s * nvlink_.count();
      found.pageable_bytes_per_s = found.buffer_bytes / host_s;
      if (round == kFitRounds) break;
      const double per_host_copy = (times.sequential_s - replayed("sequential", found)) / devices;
      device_s += (times.relay_s - replayed("relay", found) - per_host_copy) / (devices - 1.0);
      host_s += per_host_copy;
    }
    return found;
  }

  /// The trivial predictor: every copy of the method by itself, none beside another.
  [[nodiscard]] double one_after_another(const std::string& method, const HostCopies& found,
                                         BytesPerSecond pinned) const {
    const auto devices = static_cast<double>(cluster_.places().size());
    const Bytes buffer(found.buffer_bytes);
    const double host = (buffer / BytesPerSecond(found.pageable_bytes_per_s)).count();
    const double onward = (devices - 1.0) * (buffer / nvlink_).count();
    if (method == "sequential") return devices * host;
    return onward + (method == "relay" ? host : (buffer / pinned).count());
  }

  void set_links(LinkKind kind, BytesPerSecond bandwidth) {
    for (Link& link : cluster_.links)
      if (link.kind == kind) link.bandwidth = link.remaining * bandwidth;
  }

  /// Seconds of one broadcast from pageable memory.
  [[nodiscard]] double replayed(const char* method, const HostCopies& host) const {
    TrainingConfig config;
    config.world_size = static_cast<int>(cluster_.places().size());
    config.options = {{"method", method}, {"buffer", exact_text(Bytes(host.buffer_bytes))}};
    return replayed(config, host.pageable_bytes_per_s);
  }

  /// Seconds of the chunked broadcast from pinned memory.
  [[nodiscard]] double chunked(const HostCopies& host, BytesPerSecond pcie, Bytes chunk) {
    TrainingConfig config;
    config.world_size = static_cast<int>(cluster_.places().size());
    config.options = {{"method", "chunked"},
                      {"buffer", exact_text(Bytes(host.buffer_bytes))},
                      {"chunk", exact_text(chunk)},
                      {"pinned", "yes"}};
    const Cluster before = cluster_;
    set_links(LinkKind::kPcie, pcie);
    const double seconds = replayed(config, host.pageable_bytes_per_s);
    cluster_ = before;
    return seconds;
  }

  [[nodiscard]] double replayed(const TrainingConfig& config, double pageable_bytes_per_s) const {
    const Model no_model;
    const Schedule schedule = build_schedule("broadcast", no_model, config);
    ReplayInput input;
    input.schedule = &schedule;
    input.model = &no_model;
    input.cluster = &cluster_;
    input.node_of_rank = place_ranks(cluster_, schedule.world_size);
    input.copies.pageable = BytesPerSecond(pageable_bytes_per_s);
    input.record_spans = false;
    return replay(input).median_step_time_s();
  }

  /// Why a measurement lies outside, in numbers that anybody can check.
  void say_what_was_assumed(CasePrediction& prediction) const {
    prediction.limits =
        "the fit rows copy from pageable memory, and neither the rate of pinned memory nor the size of the "
        "chunks can be read from them";
    std::vector<std::string>& lines = prediction.assumed;
    lines.push_back("the fit rows copy from pageable memory, both at one rate; the fitted buffer is " +
                    to_text(Bytes(least_buffer_)) + " to " + to_text(Bytes(most_buffer_)) +
                    ", by the rate between two GPUs (" + to_text(device_.nvlinks * device_.nvlink_bandwidth) +
                    " as NCCL counts " + std::to_string(device_.nvlinks) + " links, " +
                    to_text(device_.nvlinks * device_.nvlink_raw) + " raw) and by " +
                    to_text(Seconds(kRounding)) + " of rounding in each fit row");
    const auto [slowest, fastest] = std::minmax_element(kPinned.begin(), kPinned.end());
    const auto [least, most] = std::minmax_element(kChunkMebibytes.begin(), kChunkMebibytes.end());
    lines.push_back("the chunked method copies from pinned memory at " + short_integer(*slowest) + " to " +
                    short_integer(*fastest) + " GB/s (PCIe gen5 x16), in chunks of " + short_integer(*least) +
                    " to " + short_integer(*most) +
                    " MiB; no fit row says anything of either; pinning the memory is not part of the time");
    lines.push_back(std::string("cluster ") + kCluster +
                    " with the buffer in the memory of socket 0, behind which GPU 0 sits; the host takes " +
                    to_text(CopyCosts{}.launch) + " to issue a copy");
    for (std::size_t i = 0; i < published_.rows.size(); ++i) {
      const PublishedRow& row = published_.rows[i];
      const auto measured = row.number("time_s");
      if (row.fit || !measured || prediction.rows[i].empty()) continue;
      const PredictedValue& value = prediction.rows[i].at("time_s");
      if (*measured >= value.low.front() && *measured <= value.high.front()) continue;
      lines.push_back(
          "the measured " + short_number(*measured) + " s lie outside the range: the fitted buffer needs " +
          to_text(BytesPerSecond(least_buffer_ / *measured)) + " to " +
          to_text(BytesPerSecond(most_buffer_ / *measured)) +
          " from the host to be everywhere by then; another rate of copies from pinned memory, larger "
          "chunks, or chunks that overlap less than assumed would each explain it, and no fit row says "
          "which");
    }
  }

  const PublishedCase& published_;
  Cluster cluster_;
  const DeviceModel& device_;
  BytesPerSecond nvlink_;
  FitTimes fit_;
  double least_buffer_ = 0.0;
  double most_buffer_ = 0.0;
};

const Registration<CasePredictor> kBroadcast{
    case_predictors(),
    {.name = "h100x4-host-to-device-broadcast",
     .description = "a buffer of the host copied to all GPUs of an H100 node, in three ways",
     .thing = {[](const PublishedCase& published) { return BroadcastCase(published).predict(); }},
     .order = 50}};

}  // namespace
}  // namespace stepcast

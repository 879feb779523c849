#include "sim/evidence/nccl_samples.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/text.hpp"

namespace stepcast {
namespace {

using Json = nlohmann::json;

/// `AllReduce` and `all_reduce_perf` as `allreduce`.
std::string bare(std::string name) {
  name.erase(0, name.find_last_of('/') + 1);
  if (const auto at = name.find("_perf"); at != std::string::npos) name.erase(at);
  std::erase(name, '_');
  return lower(name);
}

CollectiveKind kind_at(const std::string& where, const std::string& name) {
  const auto kind = nccl_kind(name);
  if (!kind) throw InputError("{}: {}", where, unknown_name("collective", name, nccl_kind_names()));
  return *kind;
}

template <class Number>
Number number_at(const std::string& where, const std::string& what, const std::string& text, Number least) {
  const auto value = number_in<Number>(text);
  if (!value || !(*value >= least) || !std::isfinite(*value))
    throw InputError("{}: {}: found '{}', expected a number of at least {}", where, what, text, least);
  return *value;
}

void keep(std::vector<NcclSample>& samples, NcclSample sample) {
  if (sample.gpus < 2 || sample.message <= Bytes(0)) return;
  if (sample.time <= Seconds(0)) throw InputError("{}: a call of no time", sample.where);
  samples.push_back(std::move(sample));
}

std::vector<NcclSample> read_collective_table(const std::string& path) {
  const CsvTable table = read_csv(path);
  const auto column = [&](const std::string& name) {
    const auto found = std::ranges::find(table.columns, name);
    if (found == table.columns.end())
      throw InputError("{}:1: column '{}' is missing; columns are {}", path, name, joined(table.columns));
    return static_cast<std::size_t>(found - table.columns.begin());
  };
  const std::size_t device = column("device"), op = column("op_name"), dtype = column("nccl_dtype"),
                    gpus = column("num_gpus"), bytes = column("bytes"), latency = column("latency_us");
  std::vector<NcclSample> samples;
  for (const auto [i, row] : enumerated(table.rows)) {
    const std::string where = fmt::format("{}:{}", path, table.lines[i]);
    keep(samples, {row[device], kind_at(where, row[op]), number_at(where, "num_gpus", row[gpus], 1), 1,
                   row[dtype], Bytes(number_at(where, "bytes", row[bytes], 0.0)),
                   Seconds(kMicro * number_at(where, "latency_us", row[latency], 0.0)), where});
  }
  return samples;
}

/// The value of a key. \throws InputError that names the key
template <class Value>
Value at(const Json& json, const std::string& where, const char* key) {
  if (!json.is_object() || !json.contains(key)) throw InputError("{}: key '{}' is missing", where, key);
  try {
    return json.at(key).get<Value>();
  } catch (const Json::exception&) {
    throw InputError("{}: key '{}': found {}", where, key, json.at(key).dump());
  }
}

/// The value of a key that may be missing. \throws InputError that names the key
template <class Value>
Value at_or(const Json& json, const std::string& where, const char* key, Value otherwise) {
  return json.contains(key) ? at<Value>(json, where, key) : otherwise;
}

/// Bandwidth with its digits, at most 6 decimals; "" if it is not a number.
std::string decimals(const Json& body, const char* key) {
  const Json value = body.value(key, Json());
  if (!value.is_number()) return "";
  const std::string text = value.dump(), rounded = fmt::format("{:.6f}", value.get<double>());
  return text.size() < rounded.size() && text.find('e') == std::string::npos ? text : rounded;
}

BandwidthRatio bandwidth_ratio(const std::vector<Json>& results) {
  BandwidthRatio ratio;
  for (const Json& result : results)
    for (const char* place : {"out_of_place", "in_place"})
      if (result.is_object() && result.contains(place) && result[place].is_object())
        ratio.confine(decimals(result[place], "alg_bw"), decimals(result[place], "bus_bw"));
  return ratio;
}

/// GPUs, hosts and device of nccl-tests' key 'config'.
void set_run(const Json& config, const BandwidthRatio& ratio, const std::string& where, NcclSample& sample,
             NcclMeasurements& measured) {
  const Json devices = config.is_object() ? config.value("devices", Json::array()) : Json();
  if (!devices.is_array() || !std::ranges::all_of(devices, [](const Json& gpu) { return gpu.is_object(); }))
    throw InputError("{}: key 'config': expected 'devices', a list of objects; found {}", where,
                     (config.is_object() ? devices : config).dump());
  RanksOfGpus ranks;
  int listed = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Json gpu = devices[i];
    if (gpu.value("group", Json()) != devices[0].value("group", Json())) continue;  // NCCL_TESTS_SPLIT
    ++listed;
    const auto text = [&](const char* key) {
      return gpu.contains(key) ? at<std::string>(gpu, fmt::format("{}: devices[{}]", where, i), key) : "";
    };
    const std::string rank = std::to_string(i), host = text("hostname"), name = text("device_info");
    for (const char* key : {"rank", "group", "pid"}) gpu.erase(key);
    ranks[{host, gpu.contains("device") ? gpu.dump() : rank}].insert(rank);
    set_device(sample.device, name, where);
  }
  // Without MPI only the first device is listed.
  const auto count = [&](const char* key) { return at<int>(config, where + ": key 'config'", key); };
  const int own = count("nthreads") * count("ngpus");
  const auto [gpus, note] = corrected_gpus(sample.kind, ratio, std::max(listed, own), where);
  sample.gpus = gpus;
  sample.hosts = count_hosts(ranks);
  if (!note.empty()) measured.assumed.push_back(note);
  if (listed < gpus && own != gpus)
    measured.assumed.push_back(fmt::format("{} GPUs on {} ({} listed)", gpus, counted(sample.hosts, "host"),
                                           counted(listed, "rank")));
  if (listed < static_cast<int>(devices.size())) measured.assumed.emplace_back(kSplitWorld);
}

/// \param object number of the object in the file
void add_tests(const std::string& path, int object, const Json& json, NcclMeasurements& measured) {
  const std::string part = object == 1 ? "" : fmt::format("object {}: ", object);
  const std::string where = path + (object == 1 ? "" : fmt::format(": object {}", object));
  const auto arguments = at<std::vector<std::string>>(json, where, "args");
  if (arguments.empty()) throw InputError("{}: key 'args': expected the program's name", where);
  NcclSample sample;
  const auto kind = nccl_kind(arguments.front());
  if (!kind) {
    const std::string test = printable(arguments.front());
    return measured.ignored.push_back(fmt::format("{}results of {}, which is not forecast", part, test));
  }
  sample.kind = *kind;
  const Json config = at<Json>(json, where, "config");
  const auto results = at<std::vector<Json>>(json, where, "results");
  set_run(config, bandwidth_ratio(results), where, sample, measured);
  std::size_t number = 0;
  for (const Json& result : results) {
    const std::string place = fmt::format("{}results[{}]", part, number++);
    sample.where = path + ": " + place;
    const bool out = result.contains("out_of_place") && result["out_of_place"].is_object();
    const Json body = at<Json>(result, sample.where, out ? "out_of_place" : "in_place");
    sample.message = Bytes(at<double>(result, sample.where, "size"));
    sample.dtype = at<std::string>(result, sample.where, "type");
    sample.time = Seconds(kMicro * at<double>(body, sample.where, "time"));
    const Json wrong = body.value("nwrong", Json(0));  // a number or its text; `N/A` if not counted
    if (number_in<double>(wrong.is_string() ? wrong.get<std::string>() : wrong.dump()).value_or(0.0) > 0.0)
      measured.ignored.push_back(fmt::format("{}: {} wrong elements", place, wrong.dump()));
    else
      keep(measured.samples, sample);
  }
}

/// Inspector counts what a rank gives to an all-gather and takes from a reduce-scatter; its algbw counts the
/// whole array.
double whole_array(CollectiveKind kind, double bytes, int ranks, double algbw, double time_us) {
  if (kind != CollectiveKind::kAllGather && kind != CollectiveKind::kReduceScatter) return bytes;
  const double of_algbw = algbw * 1e3 * time_us;
  if (algbw > 0.0 && std::abs(of_algbw - bytes) < std::abs(of_algbw - bytes * ranks)) return bytes;
  return bytes * ranks;
}

/// Communicator, number and collective of a call.
using InspectorCall = std::tuple<std::string, long long, std::string>;

/// Adds a rank's record of a call; keeps the shortest time over the ranks.
void add_call(const Json& object, const std::string& where, std::map<InspectorCall, NcclSample>& calls) {
  if (!object.contains("coll_perf")) return;  // of sends and receives
  const Json header = at<Json>(object, where, "header"), call = at<Json>(object, where, "coll_perf");
  const auto name = at<std::string>(call, where, "coll");
  const auto kind = nccl_kind(name);
  if (!kind) return;
  NcclSample sample;
  sample.kind = *kind;
  sample.gpus = at<int>(header, where, "n_ranks");
  if (sample.gpus < 2) return;
  sample.hosts = at_or(header, where, "nnodes", 1);
  sample.where = where;
  const auto time = at<double>(call, where, "coll_exec_time_us");
  sample.message = Bytes(whole_array(*kind, at<double>(call, where, "coll_msg_size_bytes"), sample.gpus,
                                     at_or(call, where, "coll_algobw_gbs", 0.0), time));
  sample.time = Seconds(kMicro * time);
  const InspectorCall key{at_or(header, where, "id", std::string()), at_or(call, where, "coll_sn", 0LL),
                          bare(name)};
  const auto [found, is_new] = calls.try_emplace(key, sample);
  if (!is_new) found->second.time = std::min(found->second.time, sample.time);
}

/// The median over calls of one kind, size and communicator size.
void add_medians(const std::map<InspectorCall, NcclSample>& calls, std::vector<NcclSample>& samples) {
  std::map<std::tuple<CollectiveKind, int, int, double>, std::pair<NcclSample, std::vector<double>>> equal;
  for (const auto& [call, sample] : calls) {
    auto& [first, times] = equal[{sample.kind, sample.gpus, sample.hosts, sample.message.count()}];
    if (times.empty()) first = sample;
    times.push_back(sample.time.count());
  }
  for (auto& [what, of] : equal) {
    of.first.time = Seconds(median(of.second));
    keep(samples, of.first);
  }
}

/// \param calls those of NCCL Inspector are added here
NcclMeasurements read_json(const std::string& path, const std::string& text,
                           std::map<InspectorCall, NcclSample>& calls) {
  int number = 0;
  NcclMeasurements all;
  std::vector<Json> values = parse_json_values(text, path);
  if (values.size() == 1 && values[0].is_array()) values = values[0].get<std::vector<Json>>();
  for (const Json& json : values) {
    ++number;
    if (json.is_object() && json.contains("results")) {
      add_tests(path, number, json, all);
      continue;
    }
    if (!json.is_object() || !json.contains("header"))
      throw InputError(
          "{}: object {}: expected 'results' of nccl-tests, or 'header' and 'coll_perf' of NCCL Inspector",
          path, number);
    add_call(json, fmt::format("{}: object {}", path, number), calls);
  }
  return all;
}

}  // namespace

std::vector<std::string> nccl_kind_names() {
  return transformed(kNcclKinds, [](const auto& kind) { return std::string(kind.first); });
}

std::optional<CollectiveKind> nccl_kind(const std::string& name) {
  for (const auto& [known, kind] : kNcclKinds)
    if (bare(known) == bare(name)) return kind;
  return {};
}

NcclMeasurements read_nccl_samples(const std::vector<std::string>& paths, const NcclHints& hints) {
  NcclMeasurements all;
  std::map<InspectorCall, NcclSample> calls;  // whose ranks write a file each
  for (const std::string& path : paths) {
    const std::string text = read_text(path);
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) throw InputError("{}: is empty", path);
    if (!hints.kind.empty()) kind_at("--collective", hints.kind);
    const std::string line = text.substr(first, text.find('\n', first) - first);
    const auto second = std::min(text.find_first_not_of(" \t\r\n", first + 1), text.size() - 1);
    const bool is_json = text[first] == '{' || (text[first] == '[' && text[second] == '{');
    NcclMeasurements measured;
    if (is_json)
      measured = read_json(path, text, calls);
    else if (line.find("op_name") != std::string::npos)
      measured.samples = read_collective_table(path);
    else
      measured = read_nccl_text(path, text, hints);
    std::erase_if(measured.samples, [](const NcclSample& sample) { return sample.gpus < 2; });
    if (measured.samples.empty() && !(is_json && !calls.empty()))
      throw InputError(
          "{}: has no measured collective of several GPUs; expected nccl-tests' text or -J JSON, NCCL "
          "Inspector's JSON, or CSV with op_name, num_gpus, bytes, latency_us{}",
          path, measured.ignored.empty() ? "" : "; " + measured.ignored.front());
    std::ranges::move(measured.samples, std::back_inserter(all.samples));
    for (const std::string& note : measured.assumed) all.assumed.push_back(path + ": " + note);
    for (const std::string& note : measured.ignored) all.ignored.push_back(path + ": " + note);
  }
  add_medians(calls, all.samples);
  return all;
}

}  // namespace stepcast

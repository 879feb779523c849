#include "sim/kineto/events.hpp"

#include <algorithm>
#include <array>
#include <boost/iostreams/filtering_stream.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/error.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/text.hpp"

namespace stepcast {
namespace {

namespace io = boost::iostreams;
using nlohmann::json;

constexpr int kDeepest = 8;  // arrays in arrays that are read; copies of a value are recursive
constexpr double kLongestEvent = 7.0 * 86400e6;  // us; longer ones are errors of the profiler

/// Control characters become spaces, as bytes outside of texts that are not ASCII (a byte-order mark). In
/// texts these become question marks, as their encoding may be cut or wrong, and what follows a stray
/// backslash another one. Outside of texts NaN, nan, inf and Infinity, which Kineto writes for what it
/// divides by 0, become 0.
struct PlainCharacters : io::multichar_input_filter {
  bool in_text = false, escaped = false, in_number = false;
  template <class Source>
  std::streamsize read(Source& source, char* text, std::streamsize size) {
    std::streamsize got = io::read(source, text, std::max<std::streamsize>(1, size - 1));
    if (got > 0 && got < size && text[got - 1] == 'n')  // of null or nan
      got += std::max<std::streamsize>(0, io::read(source, text + got, 1));
    for (std::streamsize i = 0; i < got; ++i) {
      char& c = text[i];
      if (static_cast<unsigned char>(c) < 0x20U) c = ' ';
      if (static_cast<unsigned char>(c) >= 0x80U) c = in_text ? '?' : ' ';
      if (escaped && std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) c = '\\';
      const bool in_quotes = in_text;
      if (c == '"' && !escaped) in_text = !in_text;
      escaped = in_quotes && c == '\\' && !escaped;
      if (in_quotes) continue;
      const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
      const bool begins = c == 'N' || c == 'I' || c == 'i' || (c == 'n' && i + 1 < got && text[i + 1] == 'a');
      if (letter && (in_number || begins)) c = in_number ? ' ' : '0';
      in_number = letter && (in_number || begins);
    }
    return got;
  }
};

std::optional<KinetoCategory> category_of(const std::string& text) {
  const std::string category = lower(text);
  const auto is = [&](const auto&... names) { return ((category == names) || ...); };
  if (is("cpu_op", "operator")) return KinetoCategory::kOperation;
  if (is("user_annotation", "python_function")) return KinetoCategory::kAnnotation;
  if (is("cuda_driver", "runtime") || category.ends_with("_runtime")) return KinetoCategory::kRuntime;
  if (is("kernel")) return KinetoCategory::kKernel;
  if (is("gpu_memcpy", "memcpy", "memset", "gpu_memset")) return KinetoCategory::kCopy;
  return std::nullopt;
}

/// Before PyTorch 1.9 annotations have the category of operations.
bool is_annotation(std::string_view name) {
  return name.starts_with("ProfilerStep#") || name.starts_with("Optimizer.") ||
         name.starts_with("enumerate(DataLoader)");
}

/// A text, or a whole number as text; "" if the object has neither under this key.
std::string text_at(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end() || !(found->is_string() || found->is_number())) return "";
  return found->is_string() ? found->get<std::string>() : fmt::format("{:.0f}", found->get<double>());
}

/// A number, also one that is written as text.
double number_at(const json& object, const char* key, double otherwise = 0.0) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end()) return otherwise;
  if (found->is_string()) return number_in<double>(found->get<std::string>()).value_or(otherwise);
  return found->is_number() ? found->get<double>() : otherwise;
}

/// Lower 31 bits of a whole number, since long trainings count further; -1: none, a negative one or 2^64 - 1.
int whole_at(const json& object, const char* key) {
  const double number = number_at(object, key, -1.0);
  const bool counts = number >= 0.0 && number < 9e15;
  return counts ? static_cast<int>(static_cast<std::int64_t>(number) & 0x7fffffff) : -1;
}

/// True if arrays and objects are in each other at most `depth` times.
bool is_shallow(const json& value, int depth = kDeepest) {
  return !value.is_structured() || (depth > 0 && std::ranges::all_of(value, [&](const json& each) {
                                      return is_shallow(each, depth - 1);
                                    }));
}

/// Takes the values of a file while it is parsed, so that events are never in memory together.
struct KinetoReader {
  KinetoFile& kineto_file;

  /// Callback of the parser. \param depth 0: the file, 1: values of its keys, 2: events \return false for a
  /// value that is taken
  bool take(int depth, json::parse_event_t what, const json& value) {
    using Event = json::parse_event_t;
    if (depth == 0 && what == Event::array_start)
      throw InputError(
          "{}: is a bare array of events, which torch writes if it was built without Kineto (as Debian's "
          "is): it lacks categories, shapes and links; profile with torch of the Python package index",
          kineto_file.path);
    if (depth == 0 && what == Event::object_end) is_whole = true;
    if (depth == 1 && what == Event::key) file_key = value.get<std::string>();
    if (file_key != "traceEvents") {
      const bool ends = what == Event::object_end || what == Event::array_end || what == Event::value;
      if (depth == 1 && ends && is_shallow(value)) about[file_key] = value;
      return true;
    }
    has_events = has_events || (depth == 1 && what == Event::array_start);
    if (depth != 2 || what != Event::object_end || !has_events) return true;
    add(value);
    return false;
  }
  void add(const json& event) {
    const std::string kind = text_at(event, "cat"), name = text_at(event, "name");
    const auto category = category_of(kind);
    const double begin = number_at(event, "ts"), duration = number_at(event, "dur", -1.0);
    if (text_at(event, "ph") != "X" || !category) return;
    if (duration < 0.0 || duration > kLongestEvent) ++kineto_file.untimed;
    if (duration < 0.0 || duration > kLongestEvent) return;
    if (kind == "python_function" && !name.starts_with("nn.Module: ")) return;
    static const json kNone;
    const json& arguments = event.contains("args") ? event["args"] : kNone;
    KinetoEvent& own = kineto_file.events.emplace_back();
    own.begin = begin;
    own.end = begin + duration;
    own.name = kineto_file.names.add(name);
    own.category = is_annotation(name) ? KinetoCategory::kAnnotation : *category;
    own.track = track(text_at(event, "pid"), text_at(event, "tid"), own.on_device());
    own.number = whole_at(arguments, own.operates() ? "Sequence number" : "correlation");
    own.arguments = used(arguments);
    own.backward = number_at(arguments, "Fwd thread id") > 0.0;
  }

  /// Number of the text of the arguments that are used; -1: none.
  int used(const json& arguments) {
    json used;
    for (const char* key : {"Input Dims", "Input dims", "Input type", "Collective name", "dtype",
                            "In msg nelems", "Out msg nelems", "Group size", "Process Group Name"})
      if (arguments.contains(key) && is_shallow(arguments[key])) used[key] = arguments[key];
    return used.empty() ? -1 : kineto_file.texts.add(used.dump());
  }
  /// \param on_device a process in a container may have the number of a GPU
  std::uint16_t track(const std::string& process, const std::string& thread, bool on_device) {
    constexpr auto kMost = std::numeric_limits<std::uint16_t>::max();
    const std::tuple key{kineto_file.texts.add(process), kineto_file.texts.add(thread), on_device};
    const auto [found, is_new] =
        tracks.try_emplace(key, static_cast<std::uint16_t>(kineto_file.tracks.size()));
    if (is_new) kineto_file.tracks.push_back({std::get<0>(key), std::get<1>(key)});
    if (kineto_file.tracks.size() > kMost)
      throw InputError("{}: more than {} threads and streams", kineto_file.path, kMost);
    return found->second;
  }

  std::string file_key{};  ///< of the file
  bool has_events = false, is_whole = false;
  std::map<std::tuple<int, int, bool>, std::uint16_t> tracks{};
  json about = json::object();  ///< the file without its events
};

KinetoMetadata metadata_of(const json& metadata, const std::string& path) {
  KinetoMetadata result;
  const auto whole_from = [&](int least, const json& part, const char* key, int otherwise) {
    const double number = number_at(part, key, otherwise);
    const bool valid = number >= least && number < 2e9 && number == std::floor(number);
    if (valid || number == otherwise) return static_cast<int>(number);
    throw InputError("{}: {}: found {:g}, expected a whole number from {} up", path, key, number, least);
  };
  for (const json& device : metadata.value("deviceProperties", json::array()))
    if (const std::string name = text_at(device, "name"); !name.empty()) result.devices.push_back(name);
  const json run = metadata.value("distributedInfo", json()), own = metadata.value("stepcast", json());
  result.world_size = whole_from(1, run, "world_size", 0);
  if (result.world_size > 0) result.rank = whole_from(0, run, "rank", -1);
  if (result.rank >= 0 && result.rank >= result.world_size)
    throw InputError("{}: rank: found {}, expected one below world_size, {}", path, result.rank,
                     result.world_size);
  result.backend = text_at(run, "backend");
  result.base_us = 1e-3 * number_at(metadata, "baseTimeNanoseconds");
  result.plain_step_s = number_at(own, "plain_step_s");
  result.batch = whole_from(1, own, "batch", 0);
  return result;
}

json arguments_of(const KinetoFile& file, const KinetoEvent& event) {
  return event.arguments < 0 ? json::object() : json::parse(file.texts[event.arguments]);
}

/// Adds the extents of a tensor, or of the tensors in a list.
void add_extents(const json& dims, std::vector<std::vector<std::int64_t>>& tensors) {
  if (!std::ranges::any_of(dims, &json::is_array)) {
    std::vector<std::int64_t>& extents = tensors.emplace_back();
    for (const json& extent : dims)
      if (extent.is_number()) extents.push_back(extent.get<std::int64_t>());
    return;
  }
  for (const json& each : dims)
    if (each.is_array()) add_extents(each, tensors);
}

}  // namespace

int TextTable::add(std::string_view text) {
  if (const auto found = indices_.find(text); found != indices_.end()) return found->second;
  const auto index = static_cast<int>(texts_.size());
  indices_.emplace(texts_.emplace_back(text), index);
  return index;
}

KinetoFile read_kineto(const std::string& path) {
  const std::unique_ptr<std::istream> raw = open_text(path);
  io::filtering_istream text;
  text.push(PlainCharacters());
  text.push(*raw);
  KinetoFile file;
  file.path = path;
  KinetoReader reader{file};
  try {
    std::ignore = json::parse(text, [&](int depth, json::parse_event_t what, const json& value) {
      return reader.take(depth, what, value);
    });
  } catch (const json::parse_error& error) {
    if (!reader.is_whole) file.cut = fmt::format("byte {}", error.byte);
  } catch (const json::out_of_range&) {
    file.cut = "a number that is too large";
  }
  if (!reader.has_events || (file.events.empty() && file.cut.empty()))
    throw InputError(
        "{}: has no {}; it is no profile of torch.profiler, or an empty one", path,
        reader.has_events ? "event of a category such as cpu_op or kernel" : "key 'traceEvents'");
  file.metadata = metadata_of(reader.about, path);
  double first = 0.0;  // other tools move times; here they are from 0 up
  for (const KinetoEvent& event : file.events) first = std::min(first, event.begin);
  for (KinetoEvent& event : file.events) event.begin -= first, event.end -= first;
  if (file.metadata.base_us != 0.0) file.metadata.base_us += first;
  std::ranges::sort(file.events, [](const KinetoEvent& a, const KinetoEvent& b) {
    return std::tuple(a.track, a.begin, -a.end) < std::tuple(b.track, b.begin, -b.end);
  });
  return file;
}

std::vector<std::vector<std::int64_t>> dims_of(const KinetoFile& file, const KinetoEvent& event) {
  std::vector<std::vector<std::int64_t>> tensors;
  const json arguments = arguments_of(file, event);
  for (const char* key : {"Input Dims", "Input dims"})
    for (const json& each : arguments.value(key, json::array()))
      if (each.is_array()) add_extents(each, tensors);
  return tensors;
}

double elements_of(const std::vector<std::int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), 1.0, std::multiplies<>());
}

std::string type_of(const KinetoFile& file, const KinetoEvent& event, std::size_t tensor) {
  const json types = arguments_of(file, event).value("Input type", json::array());
  return types.is_array() && tensor < types.size() && types[tensor].is_string()
             ? types[tensor].get<std::string>()
             : "";
}

std::optional<KinetoCall> call_of(const KinetoFile& file, const KinetoEvent& event) {
  const json arguments = arguments_of(file, event);
  // Up to PyTorch 2.4 counts are of type int: those from 2^31 up are negative.
  const auto counted = [](double count) { return count < 0.0 ? count + 0x1p32 : count; };
  KinetoCall call{.collective = text_at(arguments, "Collective name"),
                  .dtype = text_at(arguments, "dtype"),
                  .in = counted(number_at(arguments, "In msg nelems")),
                  .out = counted(number_at(arguments, "Out msg nelems")),
                  .ranks = std::max(0, whole_at(arguments, "Group size")),
                  .group = text_at(arguments, "Process Group Name")};
  return call.collective.empty() ? std::nullopt : std::optional(std::move(call));
}

}  // namespace stepcast

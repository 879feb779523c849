#include "sim/kineto/events.hpp"

#include <algorithm>
#include <array>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"

namespace stepcast {
namespace {

namespace io = boost::iostreams;
using nlohmann::json;

constexpr double kLongestEvent = 7.0 * 86400e6;  // us; longer ones are errors of the profiler

/// Control characters become spaces.
struct PlainCharacters : io::multichar_input_filter {
  template <class Source>
  std::streamsize read(Source& source, char* text, std::streamsize size) {
    const std::streamsize got = io::read(source, text, size);
    for (std::streamsize i = 0; i < got; ++i)
      if (static_cast<unsigned char>(text[i]) < 0x20U) text[i] = ' ';
    return got;
  }
};

std::optional<KinetoCategory> category_of(const std::string& text) {
  static const std::map<std::string, KinetoCategory> kCategories{
      {"cpu_op", KinetoCategory::kOperation},
      {"operator", KinetoCategory::kOperation},
      {"user_annotation", KinetoCategory::kAnnotation},
      {"python_function", KinetoCategory::kAnnotation},
      {"cuda_runtime", KinetoCategory::kRuntime},
      {"cuda_driver", KinetoCategory::kRuntime},
      {"runtime", KinetoCategory::kRuntime},
      {"hip_runtime", KinetoCategory::kRuntime},
      {"xpu_runtime", KinetoCategory::kRuntime},
      {"privateuse1_runtime", KinetoCategory::kRuntime},
      {"kernel", KinetoCategory::kKernel},
      {"gpu_memcpy", KinetoCategory::kCopy},
      {"memcpy", KinetoCategory::kCopy},
      {"memset", KinetoCategory::kCopy},
      {"gpu_memset", KinetoCategory::kCopy}};
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = kCategories.find(lower);
  return found == kCategories.end() ? std::nullopt : std::optional(found->second);
}

/// Before PyTorch 1.9 annotations have the category of operations.
bool is_annotation(std::string_view name) {
  return name.starts_with("ProfilerStep#") || name.starts_with("Optimizer.") ||
         name.starts_with("enumerate(DataLoader)");
}

/// Receives JSON token by token. Depth 1 is the file, 3 an event, 4 its arguments.
class KinetoReader final : public nlohmann::json_sax<json> {
 public:
  explicit KinetoReader(KinetoFile& file) : file_(file) {}

  bool null() override { return value(json()); }
  bool boolean(bool val) override { return value(val); }
  bool number_integer(number_integer_t val) override { return number(static_cast<double>(val)); }
  bool number_unsigned(number_unsigned_t val) override { return number(static_cast<double>(val)); }
  bool number_float(number_float_t val, const string_t& /*text*/) override { return number(val); }
  bool binary(binary_t& /*val*/) override { return true; }

  bool string(string_t& val) override {
    if (!in_events_) return value(val);
    if (depth_ == 3) return event_text(val);
    if (depth_ == 4) return argument(val, number_in<double>(val));
    if (listing_ != nullptr) separate().append(val);
    return true;
  }
  bool key(string_t& val) override {
    if (depth_ == 1) top_key_ = val;
    key_ = val;
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    ++depth_;
    if (in_events_ && depth_ == 3) begin_event();
    if (!in_events_) open(json::object());
    return true;
  }
  bool end_object() override {
    --depth_;
    if (in_events_ && depth_ == 2) end_event();
    if (!in_events_) close();
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    ++depth_;
    if (depth_ == 1) is_array_ = true;
    if (depth_ == 2 && top_key_ == "traceEvents") {
      in_events_ = has_events_ = true;
    } else if (in_events_) {
      if (depth_ == 5) listing_ = list_of(key_);
      if (listing_ != nullptr) separate().push_back('[');
    } else {
      open(json::array());
    }
    return !is_array_;
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 1) in_events_ = false;
    if (listing_ != nullptr) listing_->push_back(']');
    if (depth_ == 4) listing_ = nullptr;
    if (!in_events_) close();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    file_.cut = fmt::format("byte {}", position);
    return false;
  }

  [[nodiscard]] bool is_array() const { return is_array_; }
  [[nodiscard]] bool has_events() const { return has_events_; }
  [[nodiscard]] const json& metadata() const { return metadata_; }

 private:
  // Metadata: values of the file's own keys, as far as they are used.
  [[nodiscard]] bool wanted() const {
    return top_key_ == "deviceProperties" || top_key_ == "distributedInfo" || top_key_ == "stepcast" ||
           (depth_ == 1 &&
            (top_key_ == "record_shapes" || top_key_ == "with_stack" || top_key_ == "baseTimeNanoseconds"));
  }
  json* put(json val) {
    if (open_.empty()) return &(metadata_[top_key_] = std::move(val));
    if (!open_.back()->is_array()) return &((*open_.back())[key_] = std::move(val));
    open_.back()->push_back(std::move(val));
    return &open_.back()->back();
  }
  void open(json container) {
    if (depth_ == 1 || !wanted()) return;
    open_.push_back(put(std::move(container)));
  }
  void close() {
    if (!open_.empty()) open_.pop_back();
  }
  bool value(json val) {
    if (!in_events_ && depth_ > 0 && wanted()) put(std::move(val));
    return true;
  }
  bool number(double val) {
    if (!in_events_) return value(val);
    if (depth_ == 3) return event_number(val);
    if (depth_ == 4) return argument("", val);
    if (listing_ != nullptr) fmt::format_to(std::back_inserter(separate()), "{:.0f}", val);
    return true;
  }

  // Lists of an event as text.
  std::string* list_of(const std::string& name) {
    if (name == "Input Dims" || name == "Input dims") return &dims_;
    return name == "Input type" ? &types_ : nullptr;
  }
  std::string& separate() {
    if (!listing_->empty() && listing_->back() != '[') listing_->push_back(',');
    return *listing_;
  }

  void begin_event() {
    event_ = {};
    call_ = {};
    process_ = thread_ = category_ = name_ = {};
    dims_.clear();
    types_.clear();
    is_slice_ = false;
    duration_ = -1.0;
    correlation_ = sequence_ = -1;
  }
  bool event_text(const std::string& val) {
    if (key_ == "ph") is_slice_ = val == "X";
    if (key_ == "cat") category_ = val;
    if (key_ == "name") name_ = val;
    if (key_ == "pid") process_ = val;
    if (key_ == "tid") thread_ = val;
    if (key_ == "ts") event_.begin = number_in<double>(val).value_or(0.0);
    if (key_ == "dur") duration_ = number_in<double>(val).value_or(-1.0);
    return true;
  }
  bool event_number(double val) {
    if (key_ == "ts") event_.begin = val;
    if (key_ == "dur") duration_ = val;
    if (key_ == "pid") process_ = fmt::format("{:.0f}", val);
    if (key_ == "tid") thread_ = fmt::format("{:.0f}", val);
    return true;
  }
  bool argument(const std::string& text, std::optional<double> val) {
    const auto whole = [&] { return val && std::abs(*val) < 2e9 ? static_cast<int>(*val) : -1; };
    if (key_ == "correlation") correlation_ = whole();
    if (key_ == "Sequence number") sequence_ = whole();
    if (key_ == "Fwd thread id") event_.backward = val.value_or(0.0) > 0.0;
    if (key_ == "Collective name") call_.collective = text;
    if (key_ == "dtype") call_.dtype = text;
    if (key_ == "In msg nelems") call_.in = val.value_or(0.0);
    if (key_ == "Out msg nelems") call_.out = val.value_or(0.0);
    if (key_ == "Group size") call_.ranks = std::max(0, whole());
    if (key_ == "Process Group Name") call_.group = text;
    return true;
  }
  void end_event() {
    ++file_.count;
    const auto category = category_of(category_);
    if (!is_slice_ || !category || duration_ < 0.0 || duration_ > kLongestEvent) return;
    if (category_ == "python_function" && !name_.starts_with("nn.Module: ")) return;
    event_.category = is_annotation(name_) ? KinetoCategory::kAnnotation : *category;
    event_.end = event_.begin + duration_;
    event_.name = file_.names.add(name_);
    event_.track = track();
    event_.number = event_.operates() ? sequence_ : correlation_;
    event_.arguments = arguments();
    file_.events.push_back(event_);
  }
  int arguments() {
    KinetoArguments own;
    if (!dims_.empty()) own.dims = file_.texts.add(dims_);
    if (!types_.empty()) own.types = file_.texts.add(types_);
    if (!call_.collective.empty()) {
      own.call = static_cast<int>(file_.calls.size());
      file_.calls.push_back(call_);
    }
    if (own.dims < 0 && own.types < 0 && own.call < 0) return 0;
    const auto [found, is_new] =
        arguments_.try_emplace({own.dims, own.types, own.call}, static_cast<int>(file_.arguments.size()));
    if (is_new) file_.arguments.push_back(own);
    return found->second;
  }
  std::uint16_t track() {
    const std::pair key{file_.texts.add(process_), file_.texts.add(thread_)};
    const auto [found, is_new] = tracks_.try_emplace(key, static_cast<std::uint16_t>(file_.tracks.size()));
    if (is_new) file_.tracks.push_back({key.first, key.second});
    if (file_.tracks.size() > std::numeric_limits<std::uint16_t>::max())
      throw InputError("{}: more than {} threads and streams", file_.path,
                       std::numeric_limits<std::uint16_t>::max());
    return found->second;
  }

  KinetoFile& file_;
  int depth_ = 0;
  bool in_events_ = false, has_events_ = false, is_array_ = false, is_slice_ = false;
  std::string top_key_, key_, process_, thread_, category_, name_, dims_, types_;
  std::string* listing_ = nullptr;
  double duration_ = -1.0;
  int correlation_ = -1, sequence_ = -1;
  KinetoEvent event_;
  KinetoCall call_;
  std::map<std::pair<int, int>, std::uint16_t> tracks_;
  std::map<std::array<int, 3>, int> arguments_;
  json metadata_ = json::object();
  std::vector<json*> open_;
};

double number_at(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_number() ? object[key].get<double>()
                                                                               : 0.0;
}

KinetoMetadata metadata_of(const json& metadata) {
  KinetoMetadata result;
  const auto text = [](const json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_string()
               ? object[key].get<std::string>()
               : "";
  };
  if (metadata.contains("deviceProperties"))
    for (const json& device : metadata["deviceProperties"])
      if (const std::string name = text(device, "name"); !name.empty()) result.devices.push_back(name);
  if (metadata.contains("distributedInfo")) {
    const json& info = metadata["distributedInfo"];
    result.world_size = static_cast<int>(number_at(info, "world_size"));
    if (result.world_size > 0) result.rank = static_cast<int>(number_at(info, "rank"));
    result.backend = text(info, "backend");
  }
  result.has_shapes = number_at(metadata, "record_shapes") > 0.0;
  if (!metadata.contains("stepcast")) return result;
  result.plain_step_s = number_at(metadata["stepcast"], "plain_step_s");
  result.batch = static_cast<int>(number_at(metadata["stepcast"], "batch"));
  return result;
}

}  // namespace

int TextTable::add(std::string_view text) {
  if (const auto found = indices_.find(text); found != indices_.end()) return found->second;
  texts_.emplace_back(text);
  const int index = size() - 1;
  indices_.emplace(texts_.back(), index);
  return index;
}

KinetoFile read_kineto(const std::string& path) {
  std::ifstream raw(path, std::ios::binary);
  if (!raw) throw InputError("{}: cannot be read", path);
  const bool zipped = raw.get() == 0x1f && raw.get() == 0x8b;
  raw.clear();
  raw.seekg(0);
  io::filtering_istream text;
  text.push(PlainCharacters());
  if (zipped) text.push(io::gzip_decompressor());
  text.push(raw);
  KinetoFile file;
  file.path = path;
  KinetoReader reader(file);
  json::sax_parse(text, &reader, json::input_format_t::json, false);
  if (reader.is_array())
    throw InputError(
        "{}: is a bare array of events, which torch writes if it was built without Kineto (as Debian's is): "
        "it "
        "lacks categories, shapes and links; profile with torch of the Python package index",
        path);
  if (!reader.has_events())
    throw InputError("{}: has no key 'traceEvents'; it is no profile of torch.profiler", path);
  file.metadata = metadata_of(reader.metadata());
  std::ranges::sort(file.events, [](const KinetoEvent& a, const KinetoEvent& b) {
    return std::tuple(a.track, a.begin, -a.end) < std::tuple(b.track, b.begin, -b.end);
  });
  return file;
}

std::vector<std::vector<std::int64_t>> dims_of(const KinetoFile& file, const KinetoEvent& event) {
  std::vector<std::vector<std::int64_t>> tensors;
  const int dims = file.arguments_of(event).dims;
  if (dims < 0) return tensors;
  const std::string& text = file.texts[dims];
  std::vector<std::int64_t> extents;
  bool lists = false;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '[') {
      extents.clear();
      lists = false;
    } else if (text[i] == ']' && i + 1 < text.size()) {
      if (!lists) tensors.push_back(extents);
      lists = true;
    } else if (std::isdigit(static_cast<unsigned char>(text[i])) != 0) {
      extents.push_back(std::strtoll(text.c_str() + i, nullptr, 10));
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) ++i;
    }
  }
  return tensors;
}

}  // namespace stepcast

#include "models/chakra.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/number.hpp"

/// Numbers of fields are those of Chakra's schema (mlcommons/chakra, schema/protobuf/et_def.proto). The wire
/// format is written by hand: LibTorch brings a libprotobuf of its own version.
namespace stepcast {
namespace {

enum NodeField : std::uint32_t { kId = 1, kName, kType, kControl, kData, kMicros = 7, kAttribute = 10 };
enum AttributeField : std::uint32_t { kKey = 1, kAsInt32 = 7, kAsInt64 = 9, kAsBool = 27, kAsText = 29 };
enum WireType : std::uint32_t { kVarint = 0, kWide = 1, kText = 2, kNarrow = 5 };
constexpr std::uint32_t kWireBits = 3;
constexpr const char* kNanos = "duration_nanos";
constexpr const char* kVersion = "1.1.1-chakra.0.0.4";

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}
std::string field(std::uint32_t number, std::uint64_t value) {
  return varint(number << kWireBits | kVarint) + varint(value);
}
std::string field(std::uint32_t number, const std::string& bytes) {
  return varint(number << kWireBits | kText) + varint(bytes.size()) + bytes;
}
std::string attribute(const std::string& name, std::uint32_t kind, std::uint64_t value) {
  return field(kAttribute, field(kKey, name) + field(kind, value));
}

/// Types that other readers expect.
std::uint32_t kind_of(const std::string& attribute) {
  return attribute == "comm_src" || attribute == "comm_dst" || attribute == "comm_tag" ? kAsInt32 : kAsInt64;
}

std::string node_text(const ChakraNode& node) {
  std::string text =
      field(kId, node.id) + field(kName, node.name) + field(kType, static_cast<std::uint64_t>(node.type));
  std::string after;
  for (const std::uint64_t id : node.after) after += varint(id);
  if (!after.empty()) text += field(kData, after);
  const auto micros = static_cast<std::uint64_t>(std::llround(node.duration_s * 1e6));
  if (micros > 0) text += field(kMicros, micros);
  text += attribute("is_cpu_op", kAsBool, 0);
  if (node.duration_s > 0.0)
    text += attribute(kNanos, kAsInt64, static_cast<std::uint64_t>(std::llround(node.duration_s * 1e9)));
  for (const auto& [name, value] : node.numbers)
    text += attribute(name, kind_of(name), static_cast<std::uint64_t>(value));
  if (!node.group.empty())
    text += field(kAttribute, field(kKey, std::string("pg_name")) + field(kAsText, node.group));
  return text;
}

/// Fields of one message.
struct Reader {
  std::string_view content;
  const std::string& file_name;
  std::size_t position = 0;

  [[nodiscard]] bool done() const { return position == content.size(); }

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (std::uint32_t shift = 0; shift < 64; shift += 7) {
      if (done()) fail();
      const auto byte = static_cast<unsigned char>(content[position++]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail();
  }

  std::string_view bytes() { return take(number()); }

  /// Number of the next field and its value, if it is a number or bytes.
  struct Field {
    std::uint32_t number = 0, wire = 0;
    std::uint64_t value = 0;
    std::string_view bytes;
  };
  Field next() {
    const std::uint64_t tag = number();
    Field field{static_cast<std::uint32_t>(tag >> kWireBits), static_cast<std::uint32_t>(tag & 7), 0, {}};
    if (field.wire == kVarint)
      field.value = number();
    else if (field.wire == kText)
      field.bytes = bytes();
    else if (field.wire == kWide || field.wire == kNarrow)
      take(field.wire == kWide ? 8 : 4);
    else
      fail();
    return field;
  }

  std::string_view take(std::uint64_t size) {
    if (size > content.size() - position) fail();
    const std::string_view part = content.substr(position, size);
    position += size;
    return part;
  }
  [[noreturn]] void fail() const {
    throw InputError("{}: is no Chakra trace: a message is cut or damaged", file_name);
  }
};

void read_attribute(std::string_view bytes, const std::string& name, ChakraNode& node) {
  Reader reader{bytes, name};
  std::string key, text;
  std::optional<std::int64_t> number;
  while (!reader.done()) {
    const Reader::Field field = reader.next();
    if (field.number == kKey && field.wire == kText) key = field.bytes;
    if (field.number == kAsText && field.wire == kText) text = field.bytes;
    if (field.wire == kVarint && field.number != kKey) number = static_cast<std::int64_t>(field.value);
  }
  if (key == "pg_name") node.group = text;
  if (key == kNanos && number) node.duration_s = static_cast<double>(*number) * 1e-9;
  if (key.starts_with("comm_") && number) node.numbers[key] = *number;
}

/// Packed varints, or one.
void read_after(const Reader::Field& field, const std::string& name, ChakraNode& node) {
  if (field.wire == kVarint) return node.after.push_back(field.value);
  Reader reader{field.bytes, name};
  while (!reader.done()) node.after.push_back(reader.number());
}

ChakraNode read_node(std::string_view bytes, const std::string& name) {
  ChakraNode node;
  node.type = ChakraType{};
  double micros = 0.0;
  Reader reader{bytes, name};
  while (!reader.done()) {
    const Reader::Field field = reader.next();
    if (field.number == kId) node.id = field.value;
    if (field.number == kName) node.name = printable(field.bytes);
    if (field.number == kType) node.type = static_cast<ChakraType>(std::min<std::uint64_t>(field.value, 255));
    if (field.number == kControl || field.number == kData) read_after(field, name, node);
    if (field.number == kMicros) micros = static_cast<double>(field.value);
    if (field.number == kAttribute && field.wire == kText) read_attribute(field.bytes, name, node);
  }
  if (node.duration_s <= 0.0) node.duration_s = micros * 1e-6;
  constexpr double kLongest = 1e6;
  if (node.type < ChakraType::kMetadata || node.type > ChakraType::kCollective)
    throw InputError("{}: node {} has the unknown type {}", name, node.id, static_cast<int>(node.type));
  if (!(node.duration_s >= 0.0 && node.duration_s <= kLongest))
    throw InputError("{}: node {} takes {} s", name, node.id, node.duration_s);
  return node;
}

/// True for the metadata message that precedes the nodes: its first field is a text.
bool is_metadata(std::string_view message) {
  return message.empty() || (static_cast<unsigned char>(message.front()) == (1U << kWireBits | kText));
}

/// Rank in the name PREFIX.RANK.et; none: another name.
std::optional<int> rank_of(const std::string& name, const std::string& prefix) {
  constexpr std::string_view kEnd = ".et";
  const std::size_t start = prefix.size() + 1;
  if (!name.starts_with(prefix + ".") || !name.ends_with(kEnd) || name.size() < start + kEnd.size())
    return {};
  return number_in<int>(std::string_view(name).substr(start, name.size() - start - kEnd.size()));
}

}  // namespace

std::string chakra_text(const std::vector<ChakraNode>& nodes) {
  const std::string version = field(1, std::string(kVersion));
  std::string text = varint(version.size()) + version;
  for (const ChakraNode& node : nodes) {
    const std::string message = node_text(node);
    text += varint(message.size()) + message;
  }
  return text;
}

std::vector<ChakraNode> read_chakra(const std::string& bytes, const std::string& name) {
  std::vector<ChakraNode> nodes;
  Reader reader{bytes, name};
  for (bool first = true; !reader.done(); first = false) {
    const std::string_view message = reader.bytes();
    if (first && is_metadata(message)) continue;
    nodes.push_back(read_node(message, name));
  }
  if (nodes.empty()) throw InputError("{}: is no Chakra trace: it has no nodes", name);
  return nodes;
}

bool starts_chakra(const std::string& head) {
  try {
    const std::string name;
    Reader reader{head, name};
    std::string_view message = reader.bytes();
    if (is_metadata(message)) message = reader.bytes();
    return !read_node(message, name).name.empty();
  } catch (const InputError&) {
    return false;
  }
}

ChakraStep load_chakra(const std::string& path) {
  const std::size_t end = path.size() - std::min<std::size_t>(path.size(), 3);  // ".et"
  const std::size_t dot = path.rfind('.', end == 0 ? 0 : end - 1);
  if (!path.ends_with(".et") || dot == std::string::npos ||
      !number_in<int>(std::string_view(path).substr(dot + 1, end - dot - 1)))
    throw InputError("{}: expected the trace of a rank, PREFIX.RANK.et", path);
  const std::string prefix = path.substr(0, dot);
  ChakraStep step;
  const auto file = [&] { return fmt::format("{}.{}.et", prefix, step.ranks.size()); };
  while (std::filesystem::exists(file())) step.ranks.push_back(read_chakra(read_file(file()), file()));
  if (step.ranks.empty()) throw InputError("{}: no such file; ranks are counted from 0", file());
  const std::filesystem::path folder = std::filesystem::absolute(prefix).parent_path();
  for (const auto& other : std::filesystem::directory_iterator(folder))
    if (const auto rank = rank_of(other.path().filename(), std::filesystem::path(prefix).filename());
        rank && *rank > std::ssize(step.ranks))
      throw InputError("{}: is missing, though there is a trace of rank {}; give those of all ranks", file(),
                       *rank);
  const std::string groups = prefix + ".groups.json";
  if (!std::filesystem::exists(groups)) return step;
  of_json(groups + ": expected lists of ranks by group, {\"1\": [0, 1]}",
          [&] { nlohmann::json::parse(read_file(groups)).get_to(step.groups); });
  return step;
}

}  // namespace stepcast

#include "core/importer.hpp"

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/table.hpp"

namespace stepcast {
namespace {

namespace io = boost::iostreams;

/// A file that was cut or damaged ends there.
struct Unzipper : io::gzip_decompressor {
  template <class Source>
  std::streamsize read(Source& source, char* text, std::streamsize size) try {
    return io::gzip_decompressor::read(source, text, size);
  } catch (const std::ios_base::failure&) {
    return -1;
  }
};

struct OpenFile {
  std::ifstream file;
};
/// Text that owns the file that it is read from.
struct OpenText : OpenFile, io::filtering_istream {};

/// At most a MiB; "" at the end.
std::string next_part(std::istream& text) {
  std::string part(1U << 20U, '\0');
  text.read(part.data(), static_cast<std::streamsize>(part.size()));
  part.resize(static_cast<std::size_t>(text.gcount()));
  return part;
}

/// The text without a byte-order mark.
std::string unmarked(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

}  // namespace

Registry<Importer>& importers() {
  static Registry<Importer> registry("kind");
  return registry;
}

YamlNode import_kind(const std::string& name) {
  static const YamlNode kKinds = YamlNode::shipped("commands/importers.yaml").at("kinds");
  return kKinds.at(name).allow_only({"description", "makes", "use", "example", "options", "several"});
}

std::unique_ptr<std::istream> open_text(const std::string& path) {
  auto text = std::make_unique<OpenText>();
  text->file.open(path, std::ios::binary);
  if (std::filesystem::is_directory(path)) throw InputError("{}: is a folder, not a file", path);
  if (!text->file) throw InputError("{}: cannot be read: {}", path, std::strerror(errno));
  if (text->file.peek() == 0x1f) text->push(Unzipper());  // gzip's first byte
  text->push(text->file);
  return text;
}

std::string file_head(const std::string& path) { return unmarked(next_part(*open_text(path))); }

std::string read_text(const std::string& path) {
  constexpr std::size_t kMost = 256U << 20U;
  const std::unique_ptr<std::istream> text = open_text(path);
  std::string all;
  for (std::string part = next_part(*text); !part.empty(); part = next_part(*text)) {
    all += part;
    if (all.size() > kMost) throw InputError("{}: has more than 256 MiB", path);
  }
  return unmarked(std::move(all));
}

const Registry<Importer>::Entry* recognised_importer(const std::string& head) {
  for (const auto& entry : importers().entries())
    if (entry.value.recognises(head)) return &entry;
  return nullptr;
}

const Registry<Importer>::Entry& importer_of(const std::string& path, const std::string& kind) {
  if (!kind.empty())
    return named<UsageError>(importers().entries(), &Registry<Importer>::Entry::name, "kind of --as", kind);
  if (const auto* entry = recognised_importer(file_head(path))) return *entry;
  const auto known = transformed(importers().names(), [](const std::string& name) {
    return name + " (" + import_kind(name).at("description").text() + ")";
  });
  throw InputError("{}: the kind of this file is not known; --as sets it: {}", path, joined(known));
}

void check_options(const Registry<Importer>::Entry& kind, const ImportTexts& given) {
  const auto understood = transformed(import_kind(kind.name).items("options"), &YamlNode::text);
  for (const auto& [name, text] : given)
    if (std::ranges::find(understood, name) == understood.end())
      throw UsageError("--{} is no option for files of {}; it has {}", name, kind.name,
                       understood.empty() ? "none" : joined(understood));
}

}  // namespace stepcast

#include "core/importer.hpp"

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <filesystem>
#include <fstream>

#include "core/table.hpp"

namespace stepcast {

Registry<Importer>& importers() {
  static Registry<Importer> registry("kind");
  return registry;
}

std::string file_head(const std::string& path) {
  constexpr std::uintmax_t kHead = 1U << 20U;
  std::ifstream file(path, std::ios::binary);
  if (std::filesystem::is_directory(path) || !file) throw InputError("{}: cannot be read", path);
  const bool zipped = file.get() == 0x1f && file.get() == 0x8b;
  std::error_code no_size;  // of a pipe
  const std::uintmax_t size = std::filesystem::file_size(path, no_size);
  std::string head(zipped || no_size ? kHead : std::min(kHead, size), '\0');
  file.clear();
  file.seekg(0);
  boost::iostreams::filtering_istream text;
  if (zipped) text.push(boost::iostreams::gzip_decompressor());
  text.push(file);
  text.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(text.gcount()));
  return head;
}

const Registry<Importer>::Entry* recognised_importer(const std::string& head) {
  for (const auto& entry : importers().entries())
    if (entry.value.recognises(head)) return &entry;
  return nullptr;
}

const Registry<Importer>::Entry& importer_of(const std::string& path, const std::string& kind) {
  if (!kind.empty()) {
    const auto found = std::ranges::find(importers().entries(), kind, &Registry<Importer>::Entry::name);
    if (found == importers().entries().end())
      throw UsageError("--as: {}", unknown_name("kind", kind, importers().names()));
    return *found;
  }
  if (const auto* entry = recognised_importer(file_head(path))) return *entry;
  std::vector<std::string> known;
  for (const auto& entry : importers().entries())
    known.push_back(entry.name + " (" + entry.description + ")");
  throw InputError("{}: the kind of this file is not known; --as sets it: {}", path, joined(known));
}

std::string option_or(const ImportTexts& options, const std::string& name) {
  const auto found = options.find(name);
  return found == options.end() ? "" : found->second;
}

}  // namespace stepcast

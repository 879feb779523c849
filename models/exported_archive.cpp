#include <zip.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>

#include "core/error.hpp"
#include "models/exported_program.hpp"

namespace stepcast {
namespace {

using Archive = std::unique_ptr<zip_t, decltype(&zip_discard)>;

Archive open_archive(const std::string& path) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY, &code), &zip_discard);
  if (archive != nullptr) return archive;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  throw InputError("{}: is no zip archive that can be read: {}", path, text);
}

std::vector<std::string> member_names(zip_t* archive) {
  std::vector<std::string> names;
  for (zip_int64_t i = 0; i < zip_get_num_entries(archive, 0); ++i)
    if (const char* name = zip_get_name(archive, static_cast<zip_uint64_t>(i), 0)) names.emplace_back(name);
  return names;
}

/// Hands on a member piece by piece. \throws InputError if it is cut or has another checksum
void read_member(zip_t* archive, const std::string& name, const std::string& path,
                 const std::function<void(std::string_view)>& take) {
  const std::unique_ptr<zip_file_t, decltype(&zip_fclose)> file(zip_fopen(archive, name.c_str(), 0),
                                                                &zip_fclose);
  std::string piece(std::size_t{1} << 20, '\0');
  zip_int64_t size = -1;
  while (file != nullptr && (size = zip_fread(file.get(), piece.data(), piece.size())) > 0)
    take({piece.data(), static_cast<std::size_t>(size)});
  if (size < 0) throw InputError("{}: {} is cut or damaged", path, name);
}

bool is_program_member(const std::string& member) {
  return member == "serialized_exported_program.json" ||
         member.ends_with("/serialized_exported_program.json") ||
         (member.find("models/") != std::string::npos && member.ends_with(".json"));
}

}  // namespace

std::vector<std::string> archive_members(const std::string& path) {
  return member_names(open_archive(path).get());
}

void check_archive(const std::string& path) {
  const Archive archive = open_archive(path);
  for (const std::string& name : member_names(archive.get()))
    read_member(archive.get(), name, path, [](std::string_view) {});
}

std::string exported_json(const std::string& path) {
  constexpr zip_uint64_t kMost = zip_uint64_t{1} << 30;
  const Archive archive = open_archive(path);
  const std::vector<std::string> names = member_names(archive.get());
  const auto program = std::ranges::find_if(names, is_program_member);
  if (program == names.end())
    throw InputError(
        "{}: contains no program of torch.export; torch.export.save of PyTorch 2.4 and later writes one",
        path);
  zip_stat_t about;
  if (zip_stat(archive.get(), program->c_str(), 0, &about) != 0 || about.size > kMost)
    throw InputError("{}: {} cannot be read, or has more than 1 GiB", path, *program);
  std::string text;
  read_member(archive.get(), *program, path, [&](std::string_view piece) { text += piece; });
  return text;
}

}  // namespace stepcast

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace stepcast::include_test {

/// Which folder may include which: an arrow may never be reversed. Reads every #include of the sources.
namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;  ///< from the repository root
  int line = 0;
  std::string target;
  bool angled = false;

  [[nodiscard]] std::string folder() const { return fs::path(file).parent_path().string(); }
  [[nodiscard]] std::string place() const { return file + ":" + std::to_string(line) + ": "; }
};

using Folders = std::set<std::string>;

Folders operator+(Folders a, const Folders& b) {
  a.insert(b.begin(), b.end());
  return a;
}

struct Module {
  std::string folder;
  Folders may_include;  ///< besides its own headers: folders above it in the table
};

/// From the lowest layer up, so that no two folders include each other, directly or indirectly.
const std::vector<Module>& module_table() {
  static const Folders kModels{"core", "models"};
  static const Folders kRecords = kModels + Folders{"schedule", "records"};
  static const Folders kReplay =
      kRecords + Folders{"topologies", "calibration", "sim/strategies", "sim/collectives"};
  static const Folders kSimCommands =
      kReplay + Folders{"sim/replay", "sim/evidence", "sim/kineto", "sim/cli", "sim/study",
                        "sim/plan",   "sim/explain",  "sim/train",  "plots"};
  static const Folders kBackend{"core", "sim/collectives", "runner/launch", "runner/control",
                                "runner/backend"};
  static const Folders kExecute = kRecords + kBackend;
  static const Folders kLab =
      kRecords + Folders{"topologies", "sim/strategies", "sim/evidence", "runner/launch"};
  static const Folders kRunnerCommands =
      kExecute + kLab +
      Folders{"sim/cli", "calibration", "runner/engine", "runner/execute", "runner/measure", "runner/lab"};
  static const std::vector<Module> kTable{
      {"core", {}},
      {"models", {"core"}},
      {"topologies", {"core"}},
      {"schedule", kModels},
      {"records", kModels + Folders{"schedule"}},
      {"sim/strategies", kModels + Folders{"schedule"}},
      {"sim/collectives", {"core", "topologies", "schedule"}},
      {"calibration", kRecords + Folders{"topologies", "sim/collectives"}},
      {"sim/replay", kReplay},
      {"sim/evidence", kReplay},
      {"sim/kineto", kRecords + Folders{"topologies"}},
      {"plots", {"core", "schedule", "records", "sim/evidence"}},
      {"sim/train", kRecords + Folders{"topologies", "sim/strategies"}},
      {"sim/study", {"core", "schedule", "records", "calibration", "sim/evidence"}},
      {"sim/plan", kReplay + Folders{"sim/replay", "sim/train"}},
      {"sim/explain", kReplay + Folders{"sim/replay"}},
      {"sim/cli", kRecords + Folders{"sim/strategies"}},
      {"sim/commands", kSimCommands},
      {"sim", kSimCommands + Folders{"sim/commands"}},
      {"runner/launch", {"core"}},
      {"runner/control", {"core", "runner/launch"}},
      {"runner/backend", kModels + kBackend + Folders{"schedule"}},
      {"runner/execute", kExecute},
      {"runner/engine", kExecute + Folders{"sim/strategies", "runner/execute"}},
      {"runner/measure", kExecute + Folders{"topologies", "calibration", "runner/execute"}},
      {"runner/gloo", kBackend + Folders{"schedule"}},
      {"runner/cuda", {"core", "runner/execute"}},
      {"runner/nccl", kBackend + Folders{"schedule", "runner/cuda"}},
      {"runner/torch",
       kExecute + Folders{"sim/strategies", "runner/engine", "runner/execute", "runner/gloo"}},
      {"runner/lab", kLab},
      {"runner/commands", kRunnerCommands},
      {"runner/main", {"sim/cli", "sim/collectives"}},
  };
  return kTable;
}

struct Library {
  std::string prefix;  ///< of its headers
  Folders folders;     ///< that may include them
  /// A project header that includes it stays inside these folders, so that no other code needs the library to
  /// compile.
  bool is_private = false;
};

const std::vector<Library>& library_table() {
  static const Folders kTorch{"runner/torch"};
  /// Sums in half precision are gloo's own, and copies convert as it does: array_copies.cpp.
  static const Folders kGloo{"runner/gloo", "runner/backend"};
  static const std::vector<Library> kTable{
      {"fmt/", {"core", "records"}},
      {"nlohmann/",
       {"core", "models", "records", "calibration", "sim/kineto", "sim/evidence", "sim/cli", "sim/study",
        "sim/plan", "sim/explain", "sim/train", "sim/commands", "runner/execute", "runner/lab",
        "runner/commands"}},
      {"yaml-cpp/", {"core"}},
      {"pugixml.hpp", {"topologies"}, true},
      {"zip.h", {"models"}, true},
      {"Eigen/", {"calibration", "sim/evidence"}, true},
      {"boost/program_options", {"sim/cli", "sim/commands", "runner/commands"}},
      {"boost/algorithm/", {"sim/cli", "sim/study", "plots"}},
      {"boost/container/", {"sim/study"}},
      {"boost/math/", {"sim/replay", "sim/train"}},
      {"boost/uuid/", {"core"}, true},
      {"boost/iostreams/", {"core", "records", "sim/kineto"}, true},
      {"simgrid/", {"sim/replay"}, true},
      {"xbt/", {"sim/replay"}, true},
      {"torch/", kTorch, true},
      {"ATen/", kTorch, true},
      {"c10/", kTorch, true},
      {"gloo/", kGloo, true},
      {"cuda", {"runner/cuda", "runner/nccl"}, true},
      {"nccl.h", {"runner/nccl"}, true},
      {"gnuplot-iostream.h", {"plots"}, true},
  };
  return kTable;
}

const Library* library_of(const Include& include) {
  if (!include.angled) return nullptr;
  for (const Library& library : library_table())
    if (include.target.starts_with(library.prefix)) return &library;
  return nullptr;
}

std::string joined(const Folders& folders) {
  std::string text;
  for (const std::string& folder : folders) text += (text.empty() ? "" : ", ") + folder;
  return text.empty() ? "nothing" : text;
}

/// Headers of the C and C++ libraries and of the operating system.
bool is_system(const std::string& target) {
  static const std::regex kSystem(R"(([a-z0-9_]+(\.h)?)|((sys|net|netinet|arpa|linux)/[a-z0-9_]+\.h))");
  return std::regex_match(target, kSystem);
}

std::string project_violation(const Include& include) {
  if (include.target == "stepcast_revision.hpp" && include.folder() == "records") return "";  // generated
  const std::string target_folder = fs::path(include.target).parent_path().string();
  if (target_folder == include.folder()) return "";
  const auto rule = std::find_if(module_table().begin(), module_table().end(),
                                 [&](const Module& module) { return module.folder == include.folder(); });
  if (rule == module_table().end())
    return include.place() + "folder '" + include.folder() + "' is not in the module table";
  if (rule->may_include.contains(target_folder)) return "";
  return include.place() + "includes \"" + include.target + "\", but " + include.folder() +
         " may include only its own headers and those of: " + joined(rule->may_include);
}

/// What one #include breaks, with file, line and the rule; "" when it is allowed.
std::string violation(const Include& include) {
  if (!include.angled) return project_violation(include);
  if (const Library* library = library_of(include)) {
    if (library->folders.contains(include.folder())) return "";
    return include.place() + "includes <" + include.target +
           ">, but only these may: " + joined(library->folders);
  }
  if (is_system(include.target)) return "";
  return include.place() + "includes <" + include.target + ">, which is in no row of the library table";
}

/// Headers that bring a private library with them, included from another folder.
std::vector<std::string> leaks(const std::vector<Include>& includes) {
  std::map<std::string, std::string> private_headers;
  for (const Include& include : includes) {
    const Library* library = library_of(include);
    if (library != nullptr && library->is_private && include.file.ends_with(".hpp"))
      private_headers[include.file] = include.target;
  }
  std::vector<std::string> result;
  for (const Include& include : includes) {
    const auto found = private_headers.find(include.target);
    if (include.angled || found == private_headers.end()) continue;
    if (fs::path(found->first).parent_path().string() == include.folder()) continue;
    if (library_of({"", 0, found->second, true})->folders.contains(include.folder())) continue;
    result.push_back(include.place() + "includes \"" + include.target + "\", which brings <" + found->second +
                     "> with it and is private to its folder");
  }
  return result;
}

std::vector<Include> includes_of(const fs::path& root, const fs::path& file) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)re");
  std::vector<Include> result;
  std::ifstream stream(file);
  std::string text;
  for (int line = 1; std::getline(stream, text); ++line) {
    std::smatch match;
    if (!std::regex_match(text, match, kInclude)) continue;
    result.push_back({fs::relative(file, root).string(), line, match[2], match[1] == "<"});
  }
  return result;
}

std::vector<Include> all_includes() {
  const fs::path root = STEPCAST_SOURCE_DIR;
  std::vector<Include> result;
  for (const char* top :
       {"core", "models", "topologies", "schedule", "records", "calibration", "sim", "runner", "plots"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".hpp") continue;
      const auto found = includes_of(root, entry.path());
      result.insert(result.end(), found.begin(), found.end());
    }
  }
  return result;
}

}  // namespace

TEST_CASE("every include follows the module table") {
  const std::vector<Include> includes = all_includes();
  REQUIRE(includes.size() > 100);
  for (const Include& include : includes) {
    const std::string broken = violation(include);
    if (!broken.empty()) FAIL_CHECK(broken);
  }
}

TEST_CASE(
    "a folder may include only folders that stand above it in the module table, so there is no circle") {
  Folders above;
  for (const Module& module : module_table()) {
    for (const std::string& folder : module.may_include) {
      CAPTURE(module.folder, folder);
      CHECK((folder == module.folder || above.contains(folder)));
    }
    CHECK(above.insert(module.folder).second);
  }
}

TEST_CASE("every project include names a file by its path from the repository root") {
  for (const Include& include : all_includes()) {
    if (include.angled || include.target == "stepcast_revision.hpp") continue;
    if (!fs::exists(fs::path(STEPCAST_SOURCE_DIR) / include.target))
      FAIL_CHECK(include.place() << "there is no " << include.target);
  }
}

TEST_CASE("headers that need LibTorch, Gloo, CUDA or SimGrid stay inside their folder") {
  for (const std::string& leak : leaks(all_includes())) FAIL_CHECK(leak);
}

TEST_CASE("a reversed arrow, a foreign library and an unknown library are found and named with their place") {
  using Catch::Contains;
  CHECK(violation({"models/model.cpp", 3, "core/units.hpp", false}).empty());
  CHECK_THAT(violation({"core/units.cpp", 3, "models/model.hpp", false}),
             Contains("core/units.cpp:3: ") && Contains("models/model.hpp"));
  CHECK_THAT(violation({"sim/strategies/ddp.cpp", 7, "sim/replay/replay.hpp", false}),
             Contains("core, models") || Contains("models, core"));
  CHECK_THAT(violation({"sim/commands/predict.cpp", 9, "torch/torch.h", true}), Contains("runner/torch"));
  CHECK_THAT(violation({"models/layer.cpp", 2, "spdlog/spdlog.h", true}),
             Contains("no row of the library table"));
  CHECK_THAT(violation({"extra/thing.cpp", 1, "core/units.hpp", false}), Contains("not in the module table"));
  CHECK(violation({"runner/gloo/gloo.cpp", 1, "netinet/in.h", true}).empty());
  const std::vector<Include> leaking{{"runner/torch/model.hpp", 1, "torch/torch.h", true},
                                     {"runner/torch/model.cpp", 1, "runner/torch/model.hpp", false},
                                     {"runner/commands/run.cpp", 5, "runner/torch/model.hpp", false}};
  REQUIRE(leaks(leaking).size() == 1);
  CHECK_THAT(leaks(leaking)[0], Contains("runner/commands/run.cpp:5"));
}

}  // namespace stepcast::include_test

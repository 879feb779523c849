#include "records/run_context.hpp"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "core/file.hpp"
#include "core/load.hpp"
#include "core/table.hpp"
#include "stepcast_revision.hpp"

namespace stepcast {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

std::string schema_of(const std::string& head) {
  static const std::regex kSchema(R"re("schema"\s{0,9}:\s{0,9}"(stepcast\.[\w./-]{1,80})")re");
  std::smatch found;
  return std::regex_search(head, found, kSchema) ? found[1].str() : "";
}

std::string utc_text(std::time_t time) { return fmt::format("{:%Y-%m-%dT%H:%M:%S}", fmt::gmtime(time)); }

RunContext make_run_context(const std::string& schema, const std::vector<std::string>& command_line) {
  RunContext context;
  context.schema = schema;
  context.command_line = joined(command_line, " ");
  context.stepcast = {STEPCAST_VERSION, STEPCAST_REVISION};
  context.date = utc_text(std::time(nullptr)) + "Z";
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) context.host_name = host.data();
  context.cpu_model = cpu_model();
  // Cores that are online, not the affinity mask, which is only a share if this rank is bound.
  context.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  ::getloadavg(&context.load_average, 1);
  return context;
}

void check_unchanged(const std::string& path, const std::vector<Ancestor>& lineage) {
  for (const Ancestor& one : lineage)
    if (std::filesystem::exists(one.path) && sha1(read_file(one.path)) != one.sha1)
      throw InputError("{}: {} '{}' has changed since the forecast; repeat 'stepcast predict'", path,
                       one.role, one.path);
}

Ancestor make_ancestor(const std::string& role, const std::filesystem::path& path) {
  const std::string content = read_file(path);
  Ancestor result{role, path.string(), sha1(content), {}};
  const nlohmann::json json = nlohmann::json::parse(content, nullptr, false);
  if (!json.is_object() || !json.contains("lineage")) return result;
  std::set<std::string> all;
  for (const auto& entry : json["lineage"]) {
    const auto parent = entry.get<Ancestor>();
    all.insert(parent.sha1);
    all.insert(parent.ancestors.begin(), parent.ancestors.end());
  }
  result.ancestors.assign(all.begin(), all.end());
  return result;
}

BlasIdentity identify_blas() {
  namespace fs = std::filesystem;
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    std::error_code problem;
    const fs::path target = fs::canonical(fs::path(folder) / "libblas.so.3", problem);
    if (problem) continue;
    const std::string path = target.string();
    for (const auto& [mark, name] :
         {std::pair{"openblas", "OpenBLAS"}, {"mkl", "MKL"}, {"blis", "BLIS"}, {"atlas", "ATLAS"}})
      if (path.find(mark) != std::string::npos) return {std::string(name) + " (" + path + ")", false};
    return {"reference BLAS (" + path + ")", true};
  }
  return {"no libblas.so.3 found", false};
}

STEPCAST_JSON_MEMBERS(GpuState, (name),
                      (driver, readings, sm_clock_mhz, lowest_clock_mhz, highest_clock_mhz, memory_clock_mhz,
                       power_w, temperature_c, throttled))
STEPCAST_JSON_REQUIRED(StepcastVersion, version, git_revision)
STEPCAST_JSON_REQUIRED(ThreadPlacement, binding, scheduling)
STEPCAST_JSON_MEMBERS(RunContext, (schema),
                      (command_line, stepcast, date, host_name, cpu_model, cores, load_average, blas, threads,
                       seed, placement, gpu, libraries, warnings))
STEPCAST_JSON_MEMBERS(Ancestor, (sha1), (role, path, ancestors))

}  // namespace stepcast

#include "sim/core/run_context.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "stepcast_revision.hpp"

namespace stepcast {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

/// Cores of this machine that are switched on. Not the affinity mask: a bound rank sees only its share.
int online_cores() { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

double load_average() {
  std::array<double, 1> load{};
  return ::getloadavg(load.data(), 1) == 1 ? load[0] : 0.0;
}

}  // namespace

RunContext make_run_context(const std::string& schema, const std::vector<std::string>& command_line) {
  RunContext context;
  context.schema = schema;
  for (const std::string& word : command_line)
    context.command_line += (context.command_line.empty() ? "" : " ") + word;
  context.stepcast_version = STEPCAST_VERSION;
  context.git_revision = STEPCAST_REVISION;
  context.date = utc_now();
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) context.host_name = host.data();
  context.cpu_model = cpu_model();
  context.cores = online_cores();
  context.load_average = load_average();
  return context;
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

void to_json(nlohmann::json& json, const RunContext& c) {
  json = {{"schema", c.schema},
          {"command_line", c.command_line},
          {"stepcast_version", c.stepcast_version},
          {"git_revision", c.git_revision},
          {"date", c.date},
          {"host_name", c.host_name},
          {"cpu_model", c.cpu_model},
          {"cores", c.cores},
          {"load_average", c.load_average},
          {"blas", c.blas},
          {"threads", c.threads},
          {"seed", c.seed},
          {"binding", c.binding},
          {"scheduling", c.scheduling},
          {"libraries", c.libraries},
          {"warnings", c.warnings}};
}

void from_json(const nlohmann::json& json, RunContext& c) {
  json.at("schema").get_to(c.schema);
  c.command_line = json.value("command_line", "");
  c.stepcast_version = json.value("stepcast_version", "");
  c.git_revision = json.value("git_revision", "");
  c.date = json.value("date", "");
  c.host_name = json.value("host_name", "");
  c.cpu_model = json.value("cpu_model", "");
  c.cores = json.value("cores", 0);
  c.load_average = json.value("load_average", 0.0);
  c.blas = json.value("blas", "");
  c.threads = json.value("threads", 0);
  c.seed = json.value("seed", 0U);
  c.binding = json.value("binding", "");
  c.scheduling = json.value("scheduling", "");
  c.libraries = json.value("libraries", std::map<std::string, std::string>{});
  c.warnings = json.value("warnings", std::vector<std::string>{});
}

void to_json(nlohmann::json& json, const Ancestor& a) {
  json = {{"role", a.role}, {"path", a.path}, {"sha1", a.sha1}, {"ancestors", a.ancestors}};
}

void from_json(const nlohmann::json& json, Ancestor& a) {
  a.role = json.value("role", "");
  a.path = json.value("path", "");
  json.at("sha1").get_to(a.sha1);
  a.ancestors = json.value("ancestors", std::vector<std::string>{});
}

}  // namespace stepcast

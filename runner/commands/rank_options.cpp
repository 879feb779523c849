#include "runner/commands/rank_options.hpp"

#include <algorithm>
#include <chrono>

#include "core/environment.hpp"
#include "core/units.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/launch/binding.hpp"
#include "sim/cli/option.hpp"
#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

using std::chrono::milliseconds;

template <class Value>
std::optional<Value> given(const po::variables_map& options, const std::string& name) {
  if (options.count(name) == 0) return std::nullopt;
  return options[name].as<Value>();
}

milliseconds timeout_of(const po::variables_map& options) {
  const auto timeout = std::chrono::duration_cast<milliseconds>(seconds_option(options, "timeout"));
  if (timeout <= milliseconds::zero()) throw UsageError("--timeout must be longer than 0, for example 60s");
  return timeout;
}

std::optional<RankContext> this_rank(const po::variables_map& options) {
  const int nproc = int_option(options, "nproc", 1, kMostThreads);
  std::optional<RankContext> found =
      discover_ranks({given<int>(options, "rank"), given<int>(options, "world-size"),
                      given<std::string>(options, "master-addr"), given<int>(options, "master-port")},
                     process_environment);
  if (found && !options["nproc"].defaulted() && found->world_size != nproc)
    throw UsageError(
        "--nproc {} contradicts a world size of {} (from {}); leave --nproc out under a launcher", nproc,
        found->world_size, found->source);
  if (!found && nproc == 1) return RankContext{.source = "one process"};
  return found;
}

/// Joins as one rank of a job. \param algorithms as in BackendConfig
ExitCode join_and_run(const po::variables_map& options, const RankContext& ranks, const std::string& backend,
                      const AlgorithmChoice& algorithms, const std::function<ExitCode(RankSession&)>& body) {
  const std::string binding = bind_rank(text_option(options, "bind"), ranks);
  const std::string scheduling = set_scheduling(text_option(options, "scheduling"));
  RankSession session =
      join_job(ranks, backend, text_option(options, "interface"), timeout_of(options), algorithms);
  session.binding = binding;
  session.scheduling = scheduling;
  const ExitCode code = body(session);
  session.control->gather("end", "");  // rank 0 may serve the store: it leaves last
  return code;
}

}  // namespace

bool names_device_option(const po::variables_map& options) {
  const std::string device = text_option(options, "device");
  require_trained(precision_option(options), device == "cuda");
  return names_device(device);
}

std::unique_ptr<DeviceStream> device_option(const po::variables_map& options, int number) {
  return names_device_option(options) ? open_device(text_option(options, "device"), number) : nullptr;
}

RunContext make_rank_context(const std::string& schema, const po::variables_map& options,
                             const RankSession& session) {
  RunContext context = make_run_context(schema, command_line());
  add_library(context, find_backend(text_option(options, "backend")).library);
  context.blas = loaded_blas().description;
  context.placement = {session.binding, session.scheduling};
  constexpr double kBusy = 0.5;
  if (context.load_average > kBusy)
    context.warnings.push_back("the machine was busy: load average " + std::to_string(context.load_average));
  if (session.ranks.local_world_size > context.cores)
    context.warnings.push_back(
        fmt::format("{} ranks shared {} cores", session.ranks.local_world_size, context.cores));
  return context;
}

void add_library(RunContext& context, const std::string& library) {
  const std::size_t space = library.find(' ');
  context.libraries[library.substr(0, space)] = library.substr(space + 1);
}

void reject_options(const po::variables_map& options, const std::vector<const char*>& names,
                    const std::string& with) {
  for (const char* name : names)
    if (options.count(name) != 0 && !options[name].defaulted())
      throw UsageError(std::string("--") + name + " has no effect with " + with);
}

std::vector<std::string> without_options(const std::vector<std::string>& words,
                                         const std::vector<std::string>& with_value,
                                         const std::vector<std::string>& without_value) {
  const auto in = [](const std::vector<std::string>& names, const std::string& word) {
    return std::ranges::find(names, word) != names.end();
  };
  std::vector<std::string> result;
  for (auto word = words.begin(); word != words.end(); ++word) {
    const std::string name = word->substr(0, word->find('='));
    if (in(without_value, *word) || (name != *word && in(with_value, name))) continue;
    if (!in(with_value, *word))
      result.push_back(*word);
    else if (++word == words.end())
      break;
  }
  return result;
}

OnSample rank_progress(const RankSession& session, const std::string& what, int total) {
  if (session.ranks.rank != 0) return [](const std::string&) {};
  return [progress = std::make_shared<Progress>(what, total)](const std::string& now) {
    progress->advance(now);
  };
}

std::unique_ptr<DeviceStream> device_of_backend(const po::variables_map& options,
                                                const RankSession& session) {
  return find_backend(text_option(options, "backend")).add ? nullptr
                                                           : open_device("cuda", session.ranks.local_rank);
}

int planned_world_size(const po::variables_map& options) {
  const std::optional<RankContext> found = this_rank(options);
  return found ? found->world_size : options["nproc"].as<int>();
}

ExitCode run_on_ranks(const po::variables_map& options, const std::function<ExitCode(RankSession&)>& body) {
  const milliseconds timeout = timeout_of(options);
  const std::string backend = text_option(options, "backend");
  static_cast<void>(find_backend(backend));  // an unknown name is an error before any rank starts
  const AlgorithmChoice algorithms =
      parse_algorithms(joined(texts_option(options, "algorithm"), ","), backend);
  const std::optional<RankContext> ranks = this_rank(options);
  if (!ranks) {
    constexpr milliseconds kLongestGrace{10'000};
    return launch_local(options["nproc"].as<int>(), command_line(), std::min(timeout, kLongestGrace));
  }
  return join_and_run(options, *ranks, backend, algorithms, body);
}

ExitCode run_in_one_process(const po::variables_map& options, const std::string& what,
                            const std::function<ExitCode(RankSession&)>& body) {
  const std::optional<RankContext> found = this_rank(options);
  if (found && found->world_size > 1)
    throw UsageError(
        "{} runs in one process that drives all GPUs; this is one of {} processes (from {}): start it "
        "without a launcher",
        what, found->world_size, found->source);
  return join_and_run(options, RankContext{.source = "one process"}, "gloo", {}, body);
}

}  // namespace stepcast

#include "runner/launch/launch.hpp"

#include <regex>
#include <utility>

#include "core/environment.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

constexpr int kTorchrunDefaultPort = 29500;

/// Value of a variable. \throws UsageError that names it
std::optional<int> number(const Environment& environment, const std::string& name) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  if (const auto value = number_in<int>(*text)) return value;
  throw UsageError("environment variable {} = '{}' is not a whole number", name, *text);
}

/// Variables in which one kind of launcher sets rank and size. The first name that is set counts.
struct LauncherVariables {
  std::string source, rank, world_size, local_rank, local_world_size;
};

const std::vector<LauncherVariables> kLaunchers{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS", "SLURM_LOCALID",
     "SLURM_NTASKS_PER_NODE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK MV2_COMM_WORLD_RANK", "PMI_SIZE MV2_COMM_WORLD_SIZE",
     "MPI_LOCALRANKID MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALNRANKS MV2_COMM_WORLD_LOCAL_SIZE"}};

struct Found {
  std::string name;
  int value;
};

std::optional<Found> first_set(const Environment& environment, const std::string& names) {
  for (const std::string& name : words_in(names))
    if (const auto value = number(environment, name)) return Found{name, *value};
  return std::nullopt;
}

void check_range(const RankContext& context) {
  if (context.world_size < 1)
    throw UsageError("world size must be at least 1, got {} (from {})", context.world_size, context.source);
  if (context.rank < 0 || context.rank >= context.world_size)
    throw UsageError("rank {} is outside a world of {} (from {})", context.rank, context.world_size,
                     context.source);
}

/// Slurm sets no port; one derived from the job id separates two jobs on one host.
int default_port(const std::string& source, const Environment& environment) {
  constexpr int kFirst = 20000, kCount = 20000;
  if (source == "Slurm")
    if (const auto job = number(environment, "SLURM_JOB_ID")) return kFirst + *job % kCount;
  return kTorchrunDefaultPort;
}

/// Sets the address of rank 0: flags, MASTER_ADDR and MASTER_PORT, Slurm's node list, or this host if all
/// ranks are on it.
void find_master(RankContext& context, const RankFlags& flags, const Environment& environment) {
  const auto address = flags.master_addr ? flags.master_addr : environment("MASTER_ADDR");
  const auto step_nodes = environment("SLURM_STEP_NODELIST");
  const auto slurm_nodes = step_nodes ? step_nodes : environment("SLURM_JOB_NODELIST");
  if (address) {
    context.master_addr = *address;
  } else if (context.source == "Slurm" && slurm_nodes) {
    context.master_addr = first_slurm_host(*slurm_nodes);
  } else if (context.world_size != 1 && context.local_world_size != context.world_size) {
    throw UsageError(
        "the address of rank 0 is missing: set --master-addr or MASTER_ADDR (rank = {} and world size = {} "
        "come from {})",
        context.rank, context.world_size, context.source);
  }
  const auto port = flags.master_port ? flags.master_port : number(environment, "MASTER_PORT");
  context.master_port = port ? *port : default_port(context.source, environment);
  constexpr int kLargestPort = 65535;
  if (context.master_port < 1 || context.master_port > kLargestPort)
    throw UsageError("master port " + std::to_string(context.master_port) + " is outside 1..65535");
}

std::optional<RankContext> from_flags(const RankFlags& flags) {
  if (!flags.rank && !flags.world_size) return std::nullopt;
  if (!flags.rank || !flags.world_size)
    throw flags.rank ? UsageError("--rank {} is given but --world-size is missing", *flags.rank)
                     : UsageError("--world-size {} is given but --rank is missing", *flags.world_size);
  return RankContext{.rank = *flags.rank, .world_size = *flags.world_size, .source = "flags"};
}

std::optional<RankContext> from_launcher(const LauncherVariables& launcher, const Environment& environment) {
  const auto rank = first_set(environment, launcher.rank);
  const auto world_size = first_set(environment, launcher.world_size);
  const bool torchrun = launcher.source == "torchrun";
  // A Slurm allocation without srun has a size but no rank: nothing started this process as a rank.
  if (!rank && (!world_size || !torchrun)) return std::nullopt;
  if (!rank || !world_size) {
    const Found& set = rank ? *rank : *world_size;
    throw UsageError("{} = {} is set but {} is missing ({})", set.name, set.value,
                     words_in(rank ? launcher.world_size : launcher.rank).front(), launcher.source);
  }
  if (!torchrun && world_size->value == 1) return std::nullopt;
  RankContext context{.rank = rank->value, .world_size = world_size->value, .source = launcher.source};
  if (torchrun) context.store_folder = environment(kStoreVariable).value_or("");
  if (const auto local = first_set(environment, launcher.local_rank)) context.local_rank = local->value;
  if (const auto local = first_set(environment, launcher.local_world_size))
    context.local_world_size = local->value;
  return context;
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  static const std::regex kNumbers(R"(\[([^-,\]]*)[^\]]*\])");
  return split(std::regex_replace(node_list, kNumbers, "$1"), ',').front();
}

std::optional<RankContext> discover_ranks(const RankFlags& flags, const Environment& environment) {
  std::optional<RankContext> context = from_flags(flags);
  for (const LauncherVariables& launcher : kLaunchers)
    if (!context) context = from_launcher(launcher, environment);
  if (context) {
    check_range(*context);
    find_master(*context, flags, environment);
  } else if (flags.master_addr || flags.master_port) {
    throw UsageError("{} is given but --rank and --world-size are missing, and no launcher set them",
                     flags.master_addr ? "--master-addr" : "--master-port");
  }
  return context;
}

}  // namespace stepcast

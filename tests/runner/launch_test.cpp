#include "runner/launch/launch.hpp"

#include <catch2/catch.hpp>
#include <map>

namespace stepcast::launch_test {

namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace

TEST_CASE("without flags and variables a process has no rank", "[launch]") {
  CHECK_FALSE(discover_ranks({}, environment({})).has_value());
}

TEST_CASE("torchrun's variables give rank, size, address and local rank", "[launch]") {
  const auto ranks = discover_ranks({}, environment({{"RANK", "5"},
                                                     {"WORLD_SIZE", "8"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"LOCAL_WORLD_SIZE", "4"},
                                                     {"MASTER_ADDR", "node0"},
                                                     {"MASTER_PORT", "1234"}}));
  REQUIRE(ranks.has_value());
  CHECK(ranks->rank == 5);
  CHECK(ranks->world_size == 8);
  CHECK(ranks->local_rank == 1);
  CHECK(ranks->local_world_size == 4);
  CHECK(ranks->master_addr == "node0");
  CHECK(ranks->master_port == 1234);
  CHECK(ranks->source == "torchrun");
}

TEST_CASE("flags override torchrun, torchrun over Slurm, Slurm over Open MPI, Open MPI over PMI",
          "[launch]") {
  std::map<std::string, std::string> variables = {
      {"MASTER_ADDR", "node0"},     {"RANK", "1"},     {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "2"},
      {"SLURM_NTASKS", "3"},        {"PMI_RANK", "4"}, {"PMI_SIZE", "5"},   {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"}};
  RankFlags flags;
  flags.rank = 0;
  flags.world_size = 9;
  CHECK(discover_ranks(flags, environment(variables))->world_size == 9);
  CHECK(discover_ranks({}, environment(variables))->source == "torchrun");
  variables.erase("RANK");
  variables.erase("WORLD_SIZE");
  CHECK(discover_ranks({}, environment(variables))->source == "Slurm");
  variables.erase("SLURM_PROCID");
  CHECK(discover_ranks({}, environment(variables))->source == "Open MPI");
  variables.erase("OMPI_COMM_WORLD_RANK");
  variables.erase("OMPI_COMM_WORLD_SIZE");
  const auto pmi = discover_ranks({}, environment(variables));
  CHECK(pmi->source == "PMI");
  CHECK(pmi->rank == 4);
  CHECK(pmi->world_size == 5);
}

TEST_CASE("Slurm's ranks meet at the first host of the node list, at a port of their job", "[launch]") {
  const auto ranks = discover_ranks({}, environment({{"SLURM_PROCID", "3"},
                                                     {"SLURM_NTASKS", "4"},
                                                     {"SLURM_LOCALID", "1"},
                                                     {"SLURM_JOB_ID", "20007"},
                                                     {"SLURM_JOB_NODELIST", "gpu[03-05,9],login1"}}));
  REQUIRE(ranks.has_value());
  CHECK(ranks->master_addr == "gpu03");
  CHECK(ranks->master_port == 20007);
  CHECK(ranks->local_rank == 1);
  CHECK(first_slurm_host("a1,a2") == "a1");
  CHECK(first_slurm_host("n[7]-ib,m1") == "n7-ib");
  CHECK(first_slurm_host("host") == "host");
  CHECK(first_slurm_host("rack[1-2]node[3,5-6]") == "rack1node3");
}

TEST_CASE("a launcher's job of one rank leaves --nproc free to start ranks", "[launch]") {
  CHECK_FALSE(discover_ranks({}, environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})).has_value());
  CHECK_FALSE(discover_ranks({}, environment({{"SLURM_NTASKS", "8"}})).has_value());
}

TEST_CASE("a partial or contradictory set is an error that names what is missing and the origin of the rest",
          "[launch]") {
  const auto message = [](const RankFlags& flags, const std::map<std::string, std::string>& variables) {
    try {
      discover_ranks(flags, environment(variables));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  using Catch::Contains;
  CHECK_THAT(message({}, {{"RANK", "1"}}), Contains("RANK = 1") && Contains("WORLD_SIZE is missing"));
  CHECK_THAT(message({}, {{"WORLD_SIZE", "2"}}), Contains("WORLD_SIZE = 2") && Contains("RANK is missing"));
  CHECK_THAT(message({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
             Contains("MASTER_ADDR") && Contains("torchrun"));
  CHECK_THAT(message({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
             Contains("outside a world of 2"));
  CHECK_THAT(message({}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}}), Contains("RANK = 'x'"));
  RankFlags only_rank;
  only_rank.rank = 1;
  CHECK_THAT(message(only_rank, {}), Contains("--rank 1") && Contains("--world-size is missing"));
  RankFlags only_address;
  only_address.master_addr = "a";
  CHECK_THAT(message(only_address, {}), Contains("--rank and --world-size are missing"));
}

}  // namespace stepcast::launch_test

#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/strategies/mesh.hpp"
#include "sim/train/training.hpp"
#include "tests/worlds.hpp"

/// What a training takes from a forecast and from a cluster.
namespace stepcast::train_facts_test {
using namespace worlds;

TEST_CASE("a replica has all ranks that share its experts, and a lost host stops those it has a part of",
          "[train]") {
  const auto copies = [](const std::string& strategy, int data, const std::string& mesh,
                         const std::string& sharding = "") {
    Result result;
    result.step_time_s = {{1.0}};
    result.configuration = {
        .strategy = strategy, .data_parallel = data, .options = {{"mesh", mesh}, {"sharding", sharding}}};
    const TrainingFacts found = training_facts(result);
    return std::pair(found.replicas, found.full_copies);
  };
  CHECK(copies("ddp", 16, "") == std::pair(16, 16));
  CHECK(copies("ddp", 16, "data=16,expert=8") == std::pair(2, 2));
  CHECK(copies("ddp", 16, "data=16,tensor=4,expert=8") == std::pair(8, 8));
  CHECK(copies("ddp", 16, "data=16,expert=16") == std::pair(1, 1));
  CHECK(copies("fsdp", 16, "") == std::pair(16, 1));
  CHECK(copies("fsdp", 16, "", "no_shard") == std::pair(16, 16));
  CHECK(copies("fsdp", 32, "data=4,shard=8,expert=8") == std::pair(4, 4));
  CHECK(copies("fsdp", 32, "data=4,shard=8,expert=16") == std::pair(2, 2));
  CHECK(copies("pipeline", 32, "pipeline=2,shard=32") == std::pair(32, 1));
  const auto parts = [](const std::string& mesh) {  // of 64 ranks that a lost host of 8 may stop
    Result result;
    result.step_time_s = {{1.0}};
    result.configuration = {.strategy = "pipeline",
                            .world_size = 64,
                            .data_parallel = Mesh::parse(mesh).size("data") * Mesh::parse(mesh).size("shard"),
                            .cluster = "h100x8-hgx:nodes=8",
                            .options = {{"mesh", mesh}}};
    return training_facts(result).replicas;
  };
  CHECK(parts("pipeline=8,data=8") == 1);  // every host has a stage of all replicas
  CHECK(parts("pipeline=2,data=32") == 4);
  CHECK(parts("pipeline=2,data=4,tensor=8") == 4);
  CHECK(parts("pipeline=4,shard=16") == 2);
  CHECK(parts("data=64,expert=8") == 8);
  CHECK(parts("data=16,tensor=4,expert=8") == 8);
}

TEST_CASE("a tray of an NVLink rack fails alone", "[train]") {
  const HostFacts rack = host_facts(load_cluster("gb200-nvl72")),
                  tray = host_facts(load_cluster("gb200-nvl72:racks=2"));
  CHECK(rack.devices == 4);
  CHECK(rack.storage.host_rate.count() == Approx(1.2e9));
  CHECK(tray.at_switch == 36);
}

TEST_CASE("forecasts that train nothing are refused", "[train]") {
  const auto refusal = [](const Configuration& configuration) {
    Result result;
    result.step_time_s = {{1.0}};
    result.configuration = configuration;
    return error_of<UsageError>([&] { training_facts(result); });
  };
  CHECK(refusal({.model = "no model", .strategy = "broadcast", .label = "broadcast"}) ==
        "'broadcast' is no training");
  CHECK(refusal({.strategy = "pipeline",
                 .options = {{"forward-only", "yes"}},
                 .label = "pipeline, forward-only"}) == "'pipeline, forward-only' is no training");
}

}  // namespace stepcast::train_facts_test

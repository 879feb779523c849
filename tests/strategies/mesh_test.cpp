#include "sim/strategies/mesh.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::mesh_test {
using namespace worlds;
using Catch::Matchers::Contains;

namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

/// Some of the dimensions in any order, each of 1 to 4 ranks, and experts that divide them.
std::vector<Mesh::Dimension> drawn_dimensions(Draw& draw) {
  std::vector<Mesh::Dimension> result;
  int dividing = 1;
  for (const char* name : {"pipeline", "data", "shard", "context", "tensor"})
    if (draw.between(0, 2) > 0) {
      result.emplace_back(name, draw.between(1, 4));
      if (result.back().first != "pipeline") dividing *= result.back().second;
    }
  std::ranges::shuffle(result, draw.random());
  const int expert = draw.between(1, dividing);
  if (dividing % expert == 0) result.emplace_back("expert", expert);
  if (dividing % (2 * expert) == 0) result.emplace_back("expert_tensor", 2);
  return result;
}

int product(const std::vector<Mesh::Dimension>& dimensions) {
  int ranks = 1;
  for (const auto& [name, size] : dimensions)
    if (!name.starts_with("expert")) ranks *= size;
  return ranks;
}

std::string refusal(const std::string& strategy, const std::string& mesh, int ranks) {
  return error_of<UsageError>(
      [&] { return mesh_of(strategy, mesh).resolved(ranks, strategies().find(strategy).open); });
}

}  // namespace

TEST_CASE("a mesh is read as it is printed, and has one index per dimension for each rank") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    Draw draw(seed);
    const std::vector<Mesh::Dimension> dimensions = drawn_dimensions(draw);
    const int ranks = product(dimensions);
    const Mesh mesh = Mesh(dimensions).resolved(ranks, {"pipeline", "data"});
    INFO("seed " << seed << ": " << mesh.text());
    if (!mesh.text().empty()) {
      const Mesh again = Mesh::parse(mesh.text());
      CHECK(again.text() == mesh.text());
      for (const auto& [name, size] : dimensions) CHECK(again.size(name) == size);
      CHECK(again.resolved(ranks, {"data"}).text() == mesh.text());
    }
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> indices;
      int found = 0;
      for (const auto& [name, size] : dimensions) {
        if (name.starts_with("expert")) continue;
        indices.push_back(mesh.index(name, rank));
        CHECK((indices.back() >= 0 && indices.back() < size));
        found += indices.back() * mesh.stride(name);
      }
      CHECK(found == rank);
      seen.insert(indices);
    }
    CHECK(static_cast<int>(seen.size()) == ranks);
  }
}

TEST_CASE("what a mesh leaves open is filled once, where it stands in standard order") {
  const auto resolved = [](const std::string& strategy, const std::string& mesh, int ranks) {
    const Mesh given = mesh.empty() ? Mesh() : mesh_of(strategy, mesh);
    return given.resolved(ranks, strategies().find(strategy).open).text();
  };
  CHECK(resolved("ddp", "", 8) == "data=8");
  CHECK(resolved("ddp", "tensor=2,expert=4", 8) == "data=4,tensor=2,expert=4");
  CHECK(resolved("ddp", "expert=4,tensor=2", 8) == "data=4,tensor=2,expert=4");
  CHECK(resolved("fsdp", "context=2", 8) == "shard=4,context=2");
  CHECK(resolved("fsdp", "context=8", 8) == "shard=1,context=8");
  CHECK(resolved("fsdp", "data=2,shard=4", 8) == "data=2,shard=4");
  CHECK(resolved("pipeline", "", 8) == "pipeline=8");
  CHECK(resolved("pipeline", "tensor=2", 8) == "pipeline=4,tensor=2");
  CHECK(resolved("pipeline", "pipeline=2,tensor=2", 8) == "pipeline=2,data=2,tensor=2");
  CHECK(resolved("pipeline", "tensor=2,pipeline=2", 8) == "data=2,tensor=2,pipeline=2");
  CHECK(resolved("pipeline", "data=2,pipeline=2,context=2", 8) == "data=2,pipeline=2,context=2");
}

TEST_CASE("what has no meaning is refused in the words of the user, with what is valid") {
  CHECK(refusal("pipeline", "pipeline=3,context=2,data=1", 4) ==
        "--mesh pipeline=3,context=2,data=1 is 6 ranks, the world size is 4");
  CHECK(refusal("fsdp", "shard=4", 8) == "--mesh shard=4 is 4 ranks, the world size is 8");
  CHECK(refusal("ddp", "tensor=3", 8) == "--mesh tensor=3 needs a multiple of 3 ranks, the world size is 8");
  CHECK(refusal("ddp", "data=999999,context=999999,tensor=999999", 8) != "");
  CHECK_THAT(refusal("ddp", "data=4,expert=3", 4), Contains("--mesh data=4,expert=3: expert 3 does not") &&
                                                       Contains("the 4 ranks that data, shard"));
  CHECK_THAT(refusal("pipeline", "pipline=4", 4), Contains("did you mean 'pipeline'"));
  CHECK_THAT(refusal("pipeline", "pipeline=0,data=4", 4),
             Contains("'pipeline=0' needs a size of at least 1"));
  CHECK_THAT(refusal("pipeline", "pipeline=2,pipeline=2", 4), Contains("'pipeline' is given twice"));
  CHECK_THAT(refusal("pipeline", "pipeline", 4), Contains("needs a size"));
  CHECK_THAT(refusal("ddp", "", 4), Contains("dimension"));
  CHECK_THAT(refusal("ddp", "data=2,shard=2", 4),
             Contains("'shard' needs --strategy fsdp or pipeline") &&
                 Contains("ddp has data, context, tensor, expert, expert_tensor"));
  CHECK_THAT(refusal("ddp", "data=4,expert=2,expert_tensor=4", 4),
             Contains("expert x expert_tensor 8 does not divide the 4 ranks"));
  CHECK_THAT(refusal("fsdp", "pipeline=2", 4), Contains("'pipeline' needs --strategy pipeline"));
  CHECK_THAT(refusal("single", "context=2", 2), Contains("single has tensor, expert"));
  CHECK_THAT(refusal("fsdp", "data=8", 8), Contains("fsdp with data=N also needs shard=N"));
  CHECK_THAT(refusal("broadcast", "tensor=2", 8), Contains("has no effect with strategy 'broadcast'"));
  CHECK_THAT(refusal("fsdp", "hpz=8", 8), Contains("dimension 'hpz'") && Contains("--mesh data=R,shard=S"));
}

TEST_CASE("every order of the dimensions is the standard Schedule with other numbers of ranks") {
  const Model model = load_model(
      "moe:layers=2,hidden=16,heads=4,kv_heads=4,sequence=8,vocabulary=40,feed_forward=24,experts=4,active=2,"
      "tensor=2,context=2,expert=4,sequence_parallel=1");
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Draw draw(seed);
    const bool stages = draw.between(0, 1) == 0;
    const bool shards = draw.between(0, 1) == 0;
    std::vector<Mesh::Dimension> dimensions{{"data", 2}, {"context", 2}, {"tensor", 2}};
    if (shards) dimensions.emplace_back("shard", 2);
    if (stages) dimensions.emplace_back("pipeline", 2);
    std::ranges::shuffle(dimensions, draw.random());
    TrainingConfig config = training(product(dimensions), 4, {}, 2);
    config.mesh = Mesh(dimensions);
    const std::string strategy = stages ? "pipeline" : shards ? "fsdp" : "ddp";
    INFO("seed " << seed << ": " << strategy << " " << config.mesh.text());
    const Schedule schedule = build_schedule(strategy, model, config);  // validates it
    const Mesh mesh = config.mesh, standard = mesh.in_standard_order();
    config.mesh = standard;
    const Schedule expected = build_schedule(strategy, model, config);
    REQUIRE(schedule.groups.size() == expected.groups.size());
    std::vector<int> place;  // by rank in standard order
    for (int rank = 0; rank < config.world_size; ++rank) {
      place.push_back(0);
      for (const auto& [name, size] : dimensions)
        place.back() += standard.index(name, rank) * mesh.stride(name);
      CHECK(schedule.program_of_rank[place.back()] == expected.program_of_rank[rank]);
      CHECK(schedule.data_index_of(place.back()) == expected.data_index_of(rank));
    }
    for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
      std::set<int> moved;
      for (const int rank : expected.groups[group].ranks) moved.insert(place[rank]);
      const std::vector<int>& ranks = schedule.groups[group].ranks;
      CHECK(moved == std::set<int>(ranks.begin(), ranks.end()));
    }
    for (int rank = 0; rank < config.world_size && stages; ++rank)
      for (const Op& op : schedule.program(rank).ops)
        if (const auto* send = std::get_if<Send>(&op.action)) {
          CHECK(std::abs(send->offset) == mesh.stride("pipeline"));
          CHECK(mesh.index("tensor", rank + send->offset) == mesh.index("tensor", rank));
        }
  }
}

}  // namespace stepcast::mesh_test

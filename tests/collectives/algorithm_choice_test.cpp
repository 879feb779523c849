#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "sim/collectives/algorithm.hpp"

/// Choice of the algorithm of a collective: by kind, backend and --algorithms.
namespace stepcast::algorithm_choice_test {

using Catch::Contains;

namespace {

/// Faults of a table, a line each: an entry whose name does not begin with its kind; an entry without a known
/// backend, or the default of a backend that lacks it; a second default of one backend and kind; a kind
/// without an ideal algorithm.
std::vector<std::string> unreachable(const Registry<Algorithm>& table) {
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const std::vector<std::string> known{"", "gloo", "nccl"};
  std::vector<std::string> faults;
  std::map<std::pair<CollectiveKind, std::string>, std::string> defaults;
  for (const auto& entry : table.entries()) {
    const Algorithm& algorithm = entry.value;
    const auto fault = [&](const std::string& what) { faults.push_back(entry.name + " " + what); };
    const std::string kind = to_text(algorithm.kind);
    if (!entry.name.starts_with(kind + "/")) fault("is not named " + kind + "/...");
    if (algorithm.backends.empty()) fault("has no backend");
    for (const std::string& backend : algorithm.backends)
      if (!contains(known, backend)) fault("is of an unknown backend '" + backend + "'");
    for (const std::string& backend : algorithm.default_of) {
      if (!contains(algorithm.backends, backend))
        fault("is the default of '" + backend + "' without being its");
      const auto [first, is_new] = defaults.try_emplace({algorithm.kind, backend}, entry.name);
      if (!is_new) fault("is the default of '" + backend + "' beside " + first->second);
    }
  }
  for (const CollectiveTraits& each : kCollectiveKinds)
    if (!defaults.contains({each.value, ""}))
      faults.push_back(std::string(each.name) + " has no ideal algorithm");
  return faults;
}

}  // namespace

TEST_CASE("each kind has an ideal algorithm, Gloo its own ring, and a choice goes before both") {
  for (const auto& [kind, name, rooted, whole, kernel, rounds, chakra] : kCollectiveKinds) {
    CAPTURE(name);
    CHECK(algorithm_for(kind, "").kind == kind);
    CHECK(algorithm_for(kind, "gloo").kind == kind);
    CHECK(algorithm_for(kind, "nccl").kind == kind);
  }
  const auto all_reduce = [](const std::string& backend, const AlgorithmChoice& choice = {}) {
    return algorithm_name(algorithm_for(CollectiveKind::kAllReduce, backend, choice));
  };
  CHECK(all_reduce("gloo") == "gloo_ring");
  CHECK(all_reduce("") == "ring");
  CHECK(all_reduce("gloo", parse_algorithms("all_reduce=halving_doubling", "gloo")) == "halving_doubling");
  CHECK_THROWS_AS(algorithms().find("all_reduce/rign"), UsageError);
}

TEST_CASE("a choice is read and written as it was typed, without what the backend does anyway") {
  const std::string text = "all_reduce=halving_doubling,all_to_all=pairwise";
  CHECK(to_text(parse_algorithms(text, "gloo")) == text);
  CHECK(parse_algorithms("all_reduce=gloo_ring,broadcast=binomial", "gloo").empty());
  CHECK(parse_algorithms("all_reduce=ring", "").empty());
  CHECK(to_text(parse_algorithms("all_reduce=ring", "nccl")) == "all_reduce=ring");  // NCCL has others too
  CHECK(parse_algorithms("", "gloo").empty());
}

TEST_CASE("a choice that the backend does not have is refused with what it has") {
  CHECK_THROWS_WITH(parse_algorithms("all_reduce=gloo_rign", "gloo"),
                    Contains("did you mean 'gloo_ring'") && Contains("halving_doubling"));
  CHECK_THROWS_WITH(parse_algorithms("all_reduce=halving_doubling", "nccl"),
                    Contains("backend nccl") && Contains("double_binary_tree"));
  CHECK_THROWS_WITH(parse_algorithms("broadcast=binomial", "nccl"), Contains("nccl: there is no choice"));
  CHECK_THROWS_WITH(parse_algorithms("all_reduce=tree", ""), Contains("without a backend"));
  CHECK_THROWS_WITH(parse_algorithms("allreduce=ring", "gloo"), Contains("all_reduce"));
  CHECK_THROWS_WITH(parse_algorithms("ring", "gloo"), Contains("COLLECTIVE=NAME"));
  CHECK_THROWS_WITH(parse_algorithms("all_reduce=ring,all_reduce=ring", "gloo"), Contains("twice"));
}

TEST_CASE("every algorithm can be reached, and faults of a table are found") {
  CHECK(unreachable(algorithms()).empty());
  const auto fault = [](const std::string& name, const Algorithm& algorithm) {
    Registry<Algorithm> table("collective algorithm");
    for (const auto& entry : algorithms().entries()) table.add(entry);
    table.add({name, "made up", algorithm});
    return unreachable(table).front();
  };
  Algorithm good;
  good.backends = {"gloo"};
  Algorithm nowhere = good;
  nowhere.backends.clear();
  CHECK(fault("all_reduce/nowhere", nowhere) == "all_reduce/nowhere has no backend");
  CHECK(fault("broadcast/lost", good) == "broadcast/lost is not named all_reduce/...");
  Algorithm elsewhere = good;
  elsewhere.backends = {"mpi"};
  CHECK_THAT(fault("all_reduce/elsewhere", elsewhere), Contains("unknown backend 'mpi'"));
  Algorithm rival = good;
  rival.default_of = {"gloo"};
  CHECK_THAT(fault("all_reduce/rival", rival), Contains("beside all_reduce/gloo_ring"));
  Algorithm presumptuous = good;
  presumptuous.default_of = {"nccl"};
  CHECK_THAT(fault("all_reduce/presumptuous", presumptuous), Contains("without being its"));
  CHECK_THAT(unreachable(Registry<Algorithm>("empty")).front(),
             Contains("all_reduce has no ideal algorithm"));
}

}  // namespace stepcast::algorithm_choice_test

#include "core/registry.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace stepcast::registry_test {

TEST_CASE("entries are ordered by number, then by name, however they were added") {
  Registry<int> registry("thing");
  registry.add({.name = "c", .description = "", .value = 3, .order = 1});
  registry.add({.name = "b", .description = "", .value = 2, .order = 2});
  registry.add({.name = "a", .description = "", .value = 1, .order = 2});
  CHECK(registry.names() == std::vector<std::string>{"c", "a", "b"});
  CHECK(registry.find("b") == 2);
  CHECK_THROWS_WITH(registry.find("bb"), Catch::Contains("thing") && Catch::Contains("did you mean 'b'"));
}

TEST_CASE("what has no description is registered by name, value and order") {
  Registry<int> registry("thing");
  const Registration<int> last{registry, "a", 1, 2}, first{registry, "b", 2};
  CHECK(registry.names() == std::vector<std::string>{"b", "a"});
  CHECK(registry.find("a") == 1);
  CHECK(registry.entries().front().description.empty());
}

TEST_CASE("registering a name twice is an error in every build") {
  Registry<int> registry("thing");
  registry.add({.name = "twice", .description = "", .value = 1});
  CHECK_THROWS_WITH(registry.add({.name = "twice", .description = "", .value = 2}),
                    Catch::Contains("'twice'"));
  CHECK(registry.find("twice") == 1);
}

TEST_CASE("of very many names an error lists a few") {
  std::vector<std::string> hosts;
  for (int i = 0; i < 2048; ++i) hosts.push_back("node" + std::to_string(i));
  CHECK(unknown_name("host", "nod7", hosts) ==
        "unknown host 'nod7' (did you mean 'node7'?); known are 2048, such as node0, node1, node2");
}

}  // namespace stepcast::registry_test

#include "sim/validation/published.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"

namespace stepcast::published_test {
namespace {

/// A file of its own, removed at the end.
struct CasesFile {
  explicit CasesFile(const std::string& content)
      : path((std::filesystem::temp_directory_path() /
              ("stepcast-cases-" + std::to_string(::rand()) + ".json"))
                 .string()) {
    std::ofstream(path) << content;
  }
  ~CasesFile() { std::filesystem::remove(path); }
  CasesFile(const CasesFile&) = delete;
  CasesFile& operator=(const CasesFile&) = delete;
  std::string path;
};

std::string one_row(const std::string& row) {
  return R"({"cases": [{"id": "mine", "rows": [{)" + row + "}]}]}";
}

void check_refused(const std::string& content, const std::vector<std::string>& fragments) {
  const CasesFile file(content);
  INFO(content);
  try {
    read_published(file.path);
    FAIL_CHECK("accepted");
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Catch::Contains(file.path));
    for (const std::string& fragment : fragments) CHECK_THAT(error.what(), Catch::Contains(fragment));
  }
}

}  // namespace

TEST_CASE("the shipped measurements parse, and withheld rows have no value") {
  const std::vector<PublishedCase> cases = load_published("");
  CHECK(cases.size() == 8);
  int withheld = 0;
  for (const PublishedCase& one : cases) {
    INFO(one.id);
    CHECK(std::any_of(one.rows.begin(), one.rows.end(), [](const auto& row) { return row.fit; }));
    for (const PublishedRow& row : one.rows) {
      if (!row.withheld) continue;
      ++withheld;
      CHECK_FALSE(row.fit);
      for (const char* key : {"step_time_s", "throughput_samples_per_s", "mean_peak_memory_mb",
                              "peak_memory_mb_per_rank", "epoch_time_s", "total_time_s", "time_s", "speedup"})
        CHECK_FALSE(row.number(key).has_value());
    }
  }
  CHECK(withheld == 5);
}

TEST_CASE("a value may be a number, several or null; several are their mean") {
  const CasesFile file(one_row(R"("strategy": "ddp", "world_size": 2, "role": "fit", "step_time_s": [1, 2, 6],
                                  "throughput_samples_per_s": null)"));
  const PublishedRow row = read_published(file.path).front().rows.front();
  CHECK(row.number("step_time_s") == 3.0);
  CHECK_FALSE(row.number("throughput_samples_per_s").has_value());
  CHECK_FALSE(row.number("total_time_s").has_value());
}

TEST_CASE("bad files of measurements are refused with file, key, value and what would be valid") {
  check_refused("{}", {"'cases'"});
  check_refused("[1, 2", {"not valid JSON"});
  check_refused(R"({"cases": [], "casez": 1})", {"'casez'", "did you mean 'cases'"});
  check_refused(R"({"cases": [{"id": "a"}]})", {"cases[0]", "'rows' is missing"});
  check_refused(R"({"cases": [{"id": "a", "rows": []}]})", {"'a'", "'rows'", "[]"});
  check_refused(R"({"cases": [{"id": 7, "rows": [1]}]})", {"'id'", "7", "expected a text"});
  check_refused(one_row(R"("strategy": "ddp")"), {"'mine'", "rows[0]", "'role'", "fit, predict"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fitt")"), {"'fitt'", "did you mean 'fit'"});
  check_refused(one_row(R"("role": "fit")"), {"'strategy'", "'method'"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "world_size": 0)"),
                {"'world_size'", "found 0", "from 1"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "world_size": 2.5)"), {"found 2.5"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "step_time_s": "fast")"),
                {"'step_time_s'", "\"fast\"", "null"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "step_time_s": -1)"), {"-1", "at least 0"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "stepp_time_s": 1)"),
                {"'stepp_time_s'", "did you mean 'step_time_s'"});
  check_refused(one_row(R"("strategy": "ddp", "role": "fit", "withheld": true)"), {"'withheld'"});
  check_refused(R"({"cases": [{"id": "a", "rows": [{"strategy": "ddp", "role": "fit"}]},
                              {"id": "a", "rows": [{"strategy": "ddp", "role": "fit"}]}]})",
                {"two cases"});
}

TEST_CASE("a case of a person's own takes the place of the shipped one with its id, or is added") {
  const std::string rows = R"("rows": [{"strategy": "ddp", "role": "fit", "world_size": 3}]})";
  const CasesFile file(R"({"cases": [{"id": "mine", )" + rows + R"(, {"id": "resnet18-cifar10-ddp", )" +
                       rows + "]}");
  const std::vector<PublishedCase> cases = load_published(file.path);
  CHECK(cases.size() == 9);
  CHECK(cases.back().id == "mine");
  CHECK(cases[1].id == "resnet18-cifar10-ddp");
  CHECK(cases[1].rows.size() == 1);
}

}  // namespace stepcast::published_test

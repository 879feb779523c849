#include <sys/resource.h>

#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/error.hpp"
#include "core/importer.hpp"
#include "core/table.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "tests/kineto/imported.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::tests::damaged_profiles_test {
namespace {

std::string unzipped(const std::string& path) {
  std::ifstream raw(path, std::ios::binary);
  boost::iostreams::filtering_istream text;
  text.push(boost::iostreams::gzip_decompressor());
  text.push(raw);
  return {std::istreambuf_iterator<char>(text), {}};
}

}  // namespace

TEST_CASE("metadata that is no whole number is refused, and deeply nested values are left out", "[kineto]") {
  const TemporaryFolder folder;
  for (const auto& [part, key, value] : {std::tuple{"stepcast", "batch", nlohmann::json(-5)},
                                         {"stepcast", "batch", 2.5},
                                         {"distributedInfo", "world_size", 1e300}}) {
    nlohmann::json json = two_layers().json();
    json[part][key] = value;
    CHECK_THROWS_WITH(import_files({folder.write("refused.json", json.dump())}),
                      Catch::Contains(std::string(key) + ": found " + value.dump() +
                                      ", expected a whole number from 1 up"));
  }
  std::string text = two_layers().json().dump();
  const std::string key = "\"traceEvents\":[", deep = std::string(200'000, '[') + std::string(200'000, ']');
  text.insert(text.find(key) + key.size(),
              R"({"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":9,"tid":9,"args":{"Input Dims":)" +
                  deep + "}},");
  text.insert(1, "\"other\":" + deep + ",");
  const Trace trace = imported_trace({folder.write("deep.json", text)});
  CHECK(trace.entries.front().segments.size() == 2);
}

TEST_CASE("a cut file gives the steps before the cut, and control characters do no harm") {
  const TemporaryFolder folder;
  std::string text = unzipped(fixture("cnn-1.13.1"));
  const ProfiledRun whole = read_profiled_run({fixture("cnn-1.13.1")});
  text.replace(text.find("aten::conv2d"), 12, "aten::c\tnv2d");
  CHECK(read_profiled_run({folder.write("control.json", text)}).parameters == whole.parameters);
  const std::string cut = folder.write("cut.json", text.substr(0, text.size() - 100));
  const ProfiledRun part = read_profiled_run({cut});
  CHECK(part.parameters == whole.parameters);
  CHECK_THAT(part.ranks.front().notes.front(), Catch::Contains("ends early or is damaged at byte"));
  CHECK_THROWS_WITH(
      read_profiled_run({folder.write("begin.json", text.substr(0, text.find("autograd::engine")))}),
      Catch::Contains("where the file ends early or is damaged"));
  // The same of a compressed file: its end, and a byte in the middle.
  std::ifstream raw(fixture("cnn-1.13.1"), std::ios::binary);
  const std::string zipped{std::istreambuf_iterator<char>(raw), {}};
  const ProfiledRun begin =
      read_profiled_run({folder.write("cut.json.gz", zipped.substr(0, zipped.size() - 300))});
  CHECK(begin.parameters == whole.parameters);
  CHECK_THAT(begin.ranks.front().notes.front(), Catch::Contains("ends early or is damaged at byte"));
  CHECK(importer_of(folder.file("cut.json.gz"), "").name == "kineto");
  CHECK_THROWS_WITH(read_kineto(folder.write("bad.json.gz", zipped.substr(0, 3) + "x")),
                    Catch::Contains("bad.json.gz: has no key 'traceEvents'"));
}

TEST_CASE("a cut profile of a GPU gives the steps whose kernels it has", "[kineto]") {
  const TemporaryFolder folder;
  const std::string text = two_layers().json().dump();
  const auto cut_at = [&](std::size_t at) { return folder.write("cut.json", text.substr(0, at)); };
  const ProfiledRun run = read_profiled_run({cut_at(text.rfind("\"sgd\"") - 50)});
  CHECK(run.ranks.front().steps.size() == 2);
  CHECK_THAT(joined(run.ranks.front().notes),
             Catch::Contains("1 step without all events of the device: left out"));
  for (const char* until : {"gemm_backward", "sgd"})  // of the first step
    CHECK_THROWS_WITH(read_profiled_run({cut_at(text.find(until))}),
                      Catch::Contains("before the kernels of a whole step: times of the device are unknown"));
}

TEST_CASE("a profile of a GPU whose kernels were lost gives the steps that have them", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  nlohmann::json& events = json["traceEvents"];
  int kernels = 0;  // 3 to 5 in each step
  for (std::size_t i = 0; i < events.size();)
    if (events[i]["cat"] == "kernel" && ++kernels > 7)
      events.erase(i);
    else
      ++i;
  const ProfiledRun run = read_profiled_run({folder.write("lost.json", json.dump())});
  CHECK(run.ranks.front().steps.size() == 1);
  CHECK_THAT(joined(run.ranks.front().notes), Catch::Contains("launches have no kernel"));
  json = two_layers().json();
  for (nlohmann::json* event : events_named(json, "sgd")) (*event)["cat"] = "lost";
  const ProfiledRun alike = read_profiled_run({folder.write("alike.json", json.dump())});
  CHECK(alike.ranks.front().steps.size() == 3);
  CHECK_THAT(joined(alike.ranks.front().notes), Catch::Contains("3 of 15 launches have no kernel"));
}

TEST_CASE("times of a profile may be below zero, as other tools move them", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  const Trace before = imported_trace({folder.write("p.json", json.dump())});
  for (nlohmann::json& event : json["traceEvents"]) event["ts"] = event["ts"].get<double>() - 1e6;
  const Trace moved = imported_trace({folder.write("p.json", json.dump())});
  for (const auto& [name, time] : before.profile) CHECK(moved.profile.at(name) == Approx(time));
  REQUIRE(moved.collectives.size() == 1);
  for (const double time_s : moved.collectives.front().time_s) CHECK(time_s == Approx(80e-6));
}

TEST_CASE("a profile with NaN, infinity and characters that are no text is read as a whole", "[kineto]") {
  const TemporaryFolder folder;
  std::string text = two_layers().json().dump();
  const auto replace_all = [&](const std::string& from, const std::string& to) {
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  };
  replace_all(R"("args":{")",
              R"("args":{"a":NaN,"b":-nan,"c":[inf,-Infinity,null],"d":"nan\"inf","e":1e5,")");
  replace_all("gemm_backward", "a\\d\xff\\\\");
  const ProfiledRun run = read_profiled_run({folder.write("nan.json", text)});
  CHECK(run.ranks.front().notes.empty());
  CHECK(run.parameters == 32 * 16 + 8 * 32);
  CHECK(run.ranks.front().steps.front().parts[StepPart::kBackward].device == Approx(600.0));
}

TEST_CASE("a large profile is read in a fraction of its size") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.steps = 4000;
  nlohmann::json json = profile.json();
  for (nlohmann::json& event : json["traceEvents"]) event["args"]["Call stack"] = std::string(400, 'x');
  const std::string path = folder.write("large.json", json.dump());
  json = {};
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const KinetoFile file = read_kineto(path);
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(file.events.size() > 60'000);
  CHECK(static_cast<double>(std::filesystem::file_size(path)) > 40e6);
  const double growth = 1024.0 * static_cast<double>(after.ru_maxrss - before.ru_maxrss);
  CHECK(growth < 0.25 * static_cast<double>(std::filesystem::file_size(path)));
}

}  // namespace stepcast::tests::damaged_profiles_test

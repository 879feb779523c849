#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "tests/plots/example_inputs.hpp"

namespace stepcast::figure_test {
namespace {

namespace fs = std::filesystem;

/// An empty folder of this test, removed at its end. With STEPCAST_KEEP_FIGURES set, figures are kept in that
/// folder.
struct Folder {
  fs::path path;
  bool keep = false;
  Folder() {
    if (const char* kept = std::getenv("STEPCAST_KEEP_FIGURES")) {
      path = kept;
      keep = true;
    } else {
      path = fs::temp_directory_path() / ("stepcast_figures_" + std::to_string(::getpid()));
    }
    fs::create_directories(path);
  }
  ~Folder() {
    if (!keep) fs::remove_all(path);
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
};

const Figure& figure(const std::string& name) { return figures().find(name); }

}  // namespace

TEST_CASE("every figure draws the example results as SVG and PNG, next to script and data", "[plots]") {
  const Folder folder;
  for (const auto& entry : figures().entries()) {
    INFO(entry.name);
    const Drawing drawing = entry.value(examples::figure_input());
    for (const char* extension : {".svg", ".png"}) {
      const fs::path path = folder.path / (entry.name + extension);
      render(drawing, path, "stepcast example", true);
      CHECK(fs::file_size(path) > 1000);
    }
    CHECK(fs::exists(folder.path / (entry.name + ".gp")));
    CHECK(read_file(folder.path / (entry.name + ".dat")) == drawing.data);
  }
  CHECK(folder.files() == 4 * figures().entries().size());
}

TEST_CASE("the page of 'plot' describes every figure", "[plots]") {
  const std::string page = read_file(home_folder() / "commands" / "plot.yaml");
  for (const auto& entry : figures().entries()) CHECK_THAT(page, Catch::Contains("- \"" + entry.name + ": "));
}

TEST_CASE("every figure refuses inputs that hold nothing to draw", "[plots]") {
  for (const auto& entry : figures().entries()) {
    INFO(entry.name);
    CHECK_THROWS_AS(entry.value(FigureInput{}), InputError);
  }
}

TEST_CASE("equal inputs give equal figures", "[plots]") {
  for (const auto& entry : figures().entries()) {
    INFO(entry.name);
    const Drawing a = entry.value(examples::figure_input());
    const Drawing b = entry.value(examples::figure_input());
    CHECK(a.script == b.script);
    CHECK(a.data == b.data);
  }
}

TEST_CASE("a script that gnuplot refuses leaves no file behind", "[plots]") {
  const Folder folder;
  const std::size_t before = folder.files();
  const Drawing broken{"1 2\n", "plot nonsense nonsense\n", 300, 200};
  CHECK_THROWS_AS(render(broken, folder.path / "broken.svg", "", false), RunError);
  CHECK(folder.files() == before);
}

TEST_CASE("a figure is not overwritten without force, nor written as anything but SVG or PNG", "[plots]") {
  const Folder folder;
  const Drawing line{"1 1\n2 2\n", "plot data with lines\n", 300, 200};
  render(line, folder.path / "line.svg", "", false);
  CHECK_THROWS_AS(render(line, folder.path / "line.svg", "", false), InputError);
  CHECK_THROWS_AS(check_renderable(folder.path / "line.jpeg", false), UsageError);
}

TEST_CASE("without gnuplot in PATH a figure is a missing capability", "[plots]") {
  const Folder folder;
  const char* const usual = std::getenv("PATH");
  REQUIRE(usual != nullptr);
  const std::string path = usual;
  ::setenv("PATH", "/nonexistent", 1);
  CHECK_THROWS_AS(check_renderable(folder.path / "none.svg", false), CapabilityError);
  ::setenv("PATH", path.c_str(), 1);
}

TEST_CASE("the accuracy figure writes -50.0 % over a prediction that is half of the measured time",
          "[plots]") {
  FigureInput input;
  Result measured;
  measured.configuration.model = "m";
  measured.configuration.strategy = measured.configuration.label = "ddp";
  measured.step_time_s = {{2.0, 2.0, 2.0}};
  Result predicted = measured;
  predicted.origin = Origin::kPredicted;
  predicted.step_time_s = {{1.0}};
  input.results = {{"run.json", "a", measured}, {"predicted.json", "b", predicted}};
  CHECK_THAT(figure("accuracy")(input).data, Catch::Contains("\"-50.0 %\""));
}

TEST_CASE(
    "the speed-up's title fits into one panel, and its legend contains measured markers if there are any",
    "[plots]") {
  FigureInput input = examples::figure_input();
  CHECK_THAT(figure("speedup")(input).script,
             Catch::Contains("Speed-up over one rank, same batch per rank (weak)") &&
                 Catch::Contains("title 'measured, fastest to slowest launch (lines: predicted)'"));
  std::erase_if(input.results, [](const auto& file) { return file.result.origin == Origin::kMeasured; });
  CHECK_THAT(figure("speedup")(input).script, !Catch::Contains("title 'measured"));
  ResultFile other = *std::ranges::find_if(
      input.results, [](const ResultFile& file) { return file.result.configuration.strategy == "ddp"; });
  other.result.configuration.options = {{"bucket-cap", "1MiB"}};
  other.result.configuration.label = "ddp, bucket-cap 1MiB";
  input.results.push_back(other);
  CHECK_THAT(figure("speedup")(input).data,
             Catch::Contains("# ddp, bucket-cap 1MiB") && Catch::Contains("# ddp:"));
}

TEST_CASE("benches of several world sizes are no line", "[plots]") {
  FigureInput input = examples::figure_input();
  input.benches.back().world_size = 8;
  CHECK_THROWS_WITH(figure("bandwidth")(input),
                    Catch::Contains("of 2 and of 8 ranks; give those of one world size"));
}

TEST_CASE("the timeline draws a copy inside a backward lower than the backward", "[plots]") {
  FigureInput input;
  Result result;
  result.spans = {{0, Stream::kCompute, SpanKind::kCompute, "backward/a", 0.0, 1.0},
                  {0, Stream::kCompute, SpanKind::kOptimizerAndCopies, "copy_in/bucket0", 0.4, 0.6}};
  input.results = {{"run.json", "a", result}};
  const std::string data = figure("timeline")(input).data;
  CHECK_THAT(data, Catch::Contains("500 0 0 1000 -0.42 0.42 \"backward/a\""));
  CHECK_THAT(data, Catch::Contains("500 0.235 400 600 0.05 0.42 \"copy_in/bucket0\""));
}

}  // namespace stepcast::figure_test

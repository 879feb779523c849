#include "sim/study/report.hpp"

#include <catch2/catch.hpp>
#include <pugixml.hpp>
#include <set>

#include "plots/figure.hpp"
#include "tests/temporary_folder.hpp"

/// The page of a study.
namespace stepcast::report_test {
namespace {

constexpr const char* kNasty = R"(a < b & "c" > 'd')";

struct Example {
  Study study;
  std::map<std::string, StudyRow> rows;
  StudyReport report;
};

Example example() {
  Example it;
  it.study.title = kNasty;
  it.study.about = "<script>alert(1)</script>";
  it.study.path = "it.yaml";
  it.study.names = {"strategy", "world-size"};
  it.study.left_out = {{"because 1 < 2", 3}};
  for (const char* ranks : {"2", "4", "8"}) {
    StudyPoint point{.assigned = {}, .options = {}, .key = std::string("--world-size=") + ranks};
    point.assigned.set("strategy", "ddp");
    point.assigned.set("world-size", ranks);
    it.study.points.push_back(point);
    it.rows[point.key] = {point.key, {{"step_time_s", 0.25}, {"throughput_samples_per_s", 16.0}}, "", false};
  }
  it.rows["--world-size=8"] = {"--world-size=8", {}, "model '<bert>' & co \x1b", false};
  const Drawing drawing{"1 1\n2 2\n",
                        "set multiplot layout 1,2\nplot data with linespoints pt 5\nplot data "
                        "with boxes fs pattern 4\nunset multiplot\n",
                        300, 200};
  for (const char* file : {"first.svg", "second&.png"})
    it.report.figures.push_back({file,
                                 "shows <this>",
                                 render_text(drawing, "caption", true),
                                 {{"curve", "fraction"}, {"x<y", "1 %"}},
                                 "a & b"});
  it.report.verdicts = {"met:    efficiency at least 0.5", "MISSED: efficiency < 0.9"};
  it.report.problems = {"third.svg: x > y"};
  it.report.context.command_line = "stepcast study 'it.yaml' -o x";
  it.report.context.stepcast.git_revision = "abc123";
  return it;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("a report is one well-formed page with every figure, and needs nothing else", "[study]") {
  const Example it = example();
  const std::string html = report_html(it.study, it.rows, it.report);
  pugi::xml_document page;
  const pugi::xml_parse_result parsed = page.load_string(html.c_str());
  INFO(parsed.description() << " at " << html.substr(static_cast<std::size_t>(parsed.offset), 80));
  REQUIRE(parsed);
  CHECK(page.select_nodes("//figure/svg").size() == 2);
  CHECK(page.select_nodes("//script").empty());
  CHECK(page.select_nodes("//link").empty());
  for (const auto& found : page.select_nodes("//*[@src]")) FAIL_CHECK(found.node().name());
  std::set<std::string> links;
  for (const auto& found : page.select_nodes("//a")) links.insert(found.node().attribute("href").value());
  CHECK(links == std::set<std::string>{"first.svg", "second&.png", "results.csv"});
  std::set<std::string> names;
  for (const auto& found : page.select_nodes("//*[@id]")) {
    const std::string name = found.node().attribute("id").value();
    INFO(name);
    CHECK(names.insert(name).second);
  }
  for (const auto& found : page.select_nodes("//use")) {
    const std::string target = found.node().attribute("xlink:href").value();
    INFO(target);
    CHECK(names.contains(target.substr(1)));
  }
}

TEST_CASE("a report escapes its texts and lists points that were left out, missed or without a result",
          "[study]") {
  const Example it = example();
  const std::string html = report_html(it.study, it.rows, it.report);
  CHECK(count(html, "<script") == 0);
  CHECK(count(html, "a &lt; b &amp; &quot;c&quot; &gt; &#39;d&#39;") == 2);  // title and heading
  for (const char* text :
       {"&lt;script&gt;alert(1)", "3 points: because 1 &lt; 2", "model &#39;&lt;bert&gt;&#39; &amp; co ?",
        "class=\"verdict missed\">MISSED: efficiency &lt; 0.9", "shows &lt;this&gt;", "x&lt;y",
        "2 points answered, 1 without an answer", "abc123", "250 ms", "Not drawn: third.svg: x &gt; y"})
    CHECK_THAT(html, Catch::Contains(text));
}

}  // namespace stepcast::report_test

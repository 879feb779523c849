#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/importer.hpp"
#include "models/exported_program.hpp"
#include "models/given_layer.hpp"
#include "models/given_parts.hpp"
#include "models/model.hpp"
#include "models/operators.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::own_network_test {
namespace {

std::string reference(const char* file) {
  return std::string(STEPCAST_SOURCE_DIR) + "/tests/models/reference/" + file;
}

OperatorTensor tensor(const Shape& shape, bool weight = false) {
  double numbers = 1.0;
  for (const std::int64_t extent : shape) numbers *= static_cast<double>(extent);
  return {shape, numbers, weight};
}

double flop(const OperatorCall& call, double batch) { return cost_of(call, batch).kernel.flop.count(); }

/// Names of parts that consist of pieces with these parameters, each of one number.
std::vector<std::string> parts(const std::vector<std::vector<std::string>>& pieces) {
  std::vector<ProgramPiece> smallest;
  std::map<std::string, double> sizes;
  std::vector<std::string> order;
  for (int i = 0; const std::vector<std::string>& parameters : pieces) {
    smallest.push_back({i, i + 1, parameters});
    ++i;
    for (const std::string& name : parameters)
      if (sizes.emplace(name, 1.0).second) order.push_back(name);
  }
  return names_of_parts(modules_of(smallest, sizes), order);
}

}  // namespace

TEST_CASE("flop of operators follow from the shapes, 2 per multiply-add and per sample") {
  const OperatorCall linear{"linear", {tensor({4, 10, 6}), tensor({5, 6}, true)}, tensor({4, 10, 5})};
  CHECK(flop(linear, 4) == 2.0 * 10 * 6 * 5);
  CHECK(cost_of(linear, 4).weights == Bytes(4.0 * 30));
  CHECK(cost_of(linear, 4).kernel.forward == Bytes(4.0 * (60 + 50)));
  const OperatorCall grouped{
      "conv2d", {tensor({2, 8, 5, 5}), tensor({8, 2, 3, 3}, true)}, tensor({2, 8, 5, 5})};
  CHECK(flop(grouped, 2) == 2.0 * 25 * 8 * 2 * 9);
  const OperatorCall transposed{
      "conv_transpose2d", {tensor({1, 4, 3, 3}), tensor({4, 2, 2, 2}, true)}, tensor({1, 2, 6, 6})};
  CHECK(flop(transposed, 1) == 2.0 * 9 * 4 * 8);
  CHECK(flop({"addmm", {tensor({5}, true), tensor({8, 6}), tensor({6, 5}, true)}, tensor({8, 5})}, 4) ==
        2.0 * 2 * 6 * 5);
  const OperatorCall scores{"matmul", {tensor({2, 3, 7, 4}), tensor({2, 3, 4, 9})}, tensor({2, 3, 7, 9})};
  CHECK(flop(scores, 2) == 2.0 * 3 * 7 * 9 * 4);
  REQUIRE(cost_of(scores, 2).kernel.gemm() != nullptr);
  CHECK(cost_of(scores, 2).kernel.gemm()->heads == 3.0);
  OperatorCall attention{"scaled_dot_product_attention",
                         {tensor({2, 8, 16, 4}), tensor({2, 2, 16, 4}), tensor({2, 2, 16, 4})},
                         tensor({2, 8, 16, 4})};
  CHECK(flop(attention, 2) == 2.0 * 8 * 16 * 16 * 8);
  attention.causal = true;
  CHECK(flop(attention, 2) == 8 * 16 * 16 * 8);
  CHECK(flop({"relu_", {tensor({2, 6})}, tensor({2, 6})}, 2) == 6.0);
  CHECK(cost_of({"transpose", {tensor({2, 6})}, tensor({6, 2})}, 2).view);
  const OperatorCall unknown{"cumsum", {tensor({2, 6})}, tensor({2, 6})};
  CHECK(!knows_operator("cumsum"));
  CHECK(cost_of(unknown, 2).kernel.forward == Bytes(4.0 * 12));
  CHECK(!has_operands({"linear", {tensor({4, 10, 6})}, tensor({4, 10, 5})}));
}

TEST_CASE("elements of a list are parts, and modules with half of the parameters are divided") {
  CHECK(parts({{"words", "places"}, {"h.0.a"}, {"h.0.b"}, {"h.1.a"}, {"h.1.b"}, {}, {"head.weight"}}) ==
        std::vector<std::string>{"words", "h.0", "h.1", "head"});
  CHECK(parts({{"0.a"}, {"0.b"}, {"1.a"}}) == std::vector<std::string>{"0", "0-2", "1"});
  CHECK(parts({{}, {"a.w"}, {}, {"b.w"}, {"a.w"}}) == std::vector<std::string>{"a", "b", "a-2"});
  CHECK(parts({{}}) == std::vector<std::string>{"network"});
}

TEST_CASE("a network is written as a model file and read back") {
  GivenModel network{
      "two parts", "", "{kind: features, shape: [3, 4]}", "mean_square", "{kind: sgd, learning_rate: 0.1}",
      {}};
  GivenLayer first{.output = {6}};
  first.parameters = {{.suffix = "a.weight", .shape = {6, 12}}, {.suffix = "a.bias", .shape = {6}}};
  first.buffers = {{.suffix = "a.mean", .shape = {6}}, {.suffix = "a.count", .is_integer = true}};
  first.ready = {"a.bias", "a.weight"};
  const OperatorCost cost = cost_of({"linear", {tensor({2, 12}), tensor({6, 12}, true)}, tensor({2, 6})}, 2);
  first.operators = {{"linear", cost.kernel, cost.weights}};
  GivenLayer second{.output = {}};
  second.tied = {"a.weight"};
  second.operators = {{"sum", Kernel{.forward = Bytes(24), .backward = Bytes(24)}, {}}};
  network.parts = {{"a", first}, {"end", second}};
  const TemporaryFolder folder;
  const Model model = load_model(folder.write("net.yaml", to_text(network)));
  REQUIRE(model.segments.size() == 2);
  CHECK(model.parameters[model.segments[0].parameters.front()].name == "a.bias");
  CHECK(model.segments[1].tied == std::vector<int>{0});
  CHECK(model.buffer_bytes(0) == Bytes(24));
  CHECK(model.buffer_bytes(1) == Bytes(8));
  CHECK(model.segments[0].flop.forward == Flop(2.0 * 12 * 6));
  CHECK(model.segments[0].flop.backward == Flop(2.0 * 12 * 6));  // no gradient of the input
  CHECK(model.input.shape == Shape{3, 4});
}

TEST_CASE("a program of torch.export has PyTorch's parameters and flop") {
  const auto known = nlohmann::json::parse(read_file(reference("residual.json")));
  const Model model = load_model(reference("residual.pt2"));
  CHECK(model.parameter_count() == known.at("parameters").get<std::int64_t>());
  CHECK(model.parameters.size() == known.at("shapes").size());
  for (const Parameter& parameter : model.parameters) {
    INFO(parameter.name);
    const std::string name = parameter.name == "down.weight" ? "up.weight" : parameter.name;  // tied
    CHECK(known.at("shapes").at(name).get<Shape>() == parameter.shape);
  }
  double products = 0.0;
  for (const Segment& segment : model.segments)
    for (const LayerWork& work : segment.work)
      work.for_each_gemm([&](const Gemm& gemm) { products += gemm.flop(); });
  CHECK(products * known.at("batch").get<double>() == known.at("product_flop").get<double>());
  std::vector<std::string> names;
  for (const Segment& segment : model.segments) names.push_back(segment.name);
  CHECK(names == std::vector<std::string>{"stem", "blocks.0", "blocks.1", "up"});
}

TEST_CASE("archives that are no program of torch.export are refused with what they are") {
  using Catch::Contains;
  const Importer& importer = importers().find("torch");
  const std::string script = std::string(STEPCAST_SOURCE_DIR) + "/tests/fuzz/seeds/linear.pt";
  REQUIRE(importer.recognises(file_head(script)));
  REQUIRE(importer.read({script}, {}).obstacles.size() == 1);
  CHECK_THAT(importer.read({script}, {}).obstacles.front(), Contains("stepcast measure --model"));
  CHECK_THROWS_WITH(load_model(script), Contains("linear.pt.yaml is missing"));
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(
      exported_json(folder.write("cut.pt2", read_file(reference("residual.pt2")).substr(0, 900))),
      Contains("no zip archive that can be read"));
  auto program = nlohmann::json::parse(exported_json(reference("residual.pt2")));
  program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {{"as_expr", {{"expr_str", "s0"}}}};
  CHECK_THROWS_WITH(read_exported(program.dump(), "a.pt2"), Contains("a.pt2: tensor 'x' has a dynamic size"));
}

}  // namespace stepcast::own_network_test

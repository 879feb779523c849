#include "models/execution.hpp"

#include <catch2/catch.hpp>

#include "models/model.hpp"

namespace stepcast::model_execution_test {
namespace {

/// A model with these choices.
void choose(const std::string& specification, const Execution& execution) {
  Model model = load_model(specification);
  apply(execution, model);
}

const std::string kLlama = "llama:layers=2,hidden=1024,heads=8,sequence=512";

}  // namespace

TEST_CASE("overlap of tensor parallelism is refused for a model without it") {
  CHECK_THROWS_WITH(choose(kLlama, {.tensor_overlap = "userbuffers"}),
                    "--tensor-overlap userbuffers: has no effect without --mesh tensor=N; leave it out");
  CHECK_NOTHROW(choose(kLlama + ",tensor=2", {.tensor_overlap = "userbuffers"}));
}

}  // namespace stepcast::model_execution_test

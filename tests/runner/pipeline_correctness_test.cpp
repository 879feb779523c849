#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runner/trained.hpp"

/// Pipelines against whole-graph training in one process.
namespace stepcast::pipeline_correctness_test {
using namespace trained;

TEST_CASE("pipelines of two ranks train as one process does, for every split, schedule and checkpointing") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* split : {"2-2", "3-1", "1-3"})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const int micro_batches : {1, 2, 4, 8}) {
        INFO(split << " " << schedule << " " << micro_batches);
        check_equal(model, train_on_ranks("pipeline", model, pipeline(2, split, schedule, micro_batches)),
                    expected);
      }
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const char* checkpoint : {"except_last", "always"}) {
      INFO(schedule << " " << checkpoint);
      check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "2-2", schedule, 4, checkpoint)),
                  expected);
    }
}

TEST_CASE("pipelines whose stages are in shards train as one process does, with tied tensors too") {
  Model model = small_bert();
  for (const char* optimizer : {"sgd", "adam"}) {
    model.optimizer.kind = optimizer;
    model.optimizer.learning_rate = model.optimizer.kind == "adam" ? 1e-3 : 0.05;
    const Values expected = train_natively(model, 8);
    for (const char* mesh : {"pipeline=2,shard=2", "shard=2,pipeline=2"})
      for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
        INFO(optimizer << " " << mesh << " " << schedule);
        const bool interleaved = std::string(schedule) == "interleaved";
        TrainingConfig config = pipeline(4, interleaved ? "even" : "3-1", schedule, 2);
        config.batch = 4;
        config.mesh = Mesh::parse(mesh);
        if (interleaved) config.options["virtual-stages"] = "2";
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
        config.recompute.blocks = 1;
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
      }
  }
  const Model tied = with_sgd("gpt2-small:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0");
  TrainingConfig config = pipeline(4, "3-1", "1f1b", 2);
  config.batch = 4;
  config.mesh = Mesh::parse("pipeline=2,shard=2");
  check_equal(tied, train_on_ranks("pipeline", tied, config), train_natively(tied, 8));
}

TEST_CASE("interleaved pipelines of two ranks train as one process does") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const int micro_batches : {2, 4, 8})
    for (const char* checkpoint : {"never", "always"}) {
      INFO(micro_batches << " " << checkpoint);
      TrainingConfig config = pipeline(2, "even", "interleaved", micro_batches, checkpoint);
      config.options["virtual-stages"] = "2";
      check_equal(model, train_on_ranks("pipeline", model, config), expected);
    }
}

TEST_CASE("zero-bubble pipelines train as one process does: alone, with replicas, with what they share") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* split : {"2-2", "3-1", "1-3"})
    for (const int micro_batches : {1, 2, 4, 8}) {
      INFO(split << " " << micro_batches);
      check_equal(model, train_on_ranks("pipeline", model, pipeline(2, split, "zb-h1", micro_batches)),
                  expected);
    }
  check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "even", "zb-h1", 8)), expected);
  for (const char* checkpoint : {"except_last", "always"})
    check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "2-2", "zb-h1", 4, checkpoint)),
                expected);
  TrainingConfig recomputing = pipeline(2, "2-2", "zb-h1", 4);
  recomputing.recompute.blocks = 1;
  check_equal(model, train_on_ranks("pipeline", model, recomputing), expected);
  for (const char* zero : {"0", "1", "2"}) {
    INFO("zero " << zero);
    TrainingConfig replicated = pipeline(4, "3-1", "zb-h1", 2);
    replicated.batch = 4;
    replicated.mesh = Mesh::parse("pipeline=2,data=2");
    replicated.options["bucket-cap"] = "3000B";
    replicated.options["zero"] = zero;
    check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
  }
}

TEST_CASE("pipelines of four ranks train as one process does, interleaved and with replicas too") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    INFO(schedule);
    check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "even", schedule, 8)), expected);
  }
  check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "0-2-2-0", "1f1b", 8)), expected);
  const Model deep = small_bert(8);
  TrainingConfig interleaved = pipeline(4, "even", "interleaved", 4);
  interleaved.options["virtual-stages"] = "2";
  check_equal(deep, train_on_ranks("pipeline", deep, interleaved), train_natively(deep, 8));

  for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"}) {
    INFO(mesh);
    TrainingConfig replicated = pipeline(4, "3-1", "1f1b", 2);
    replicated.batch = 4;
    replicated.mesh = Mesh::parse(mesh);
    replicated.options["bucket-cap"] = "3000B";
    check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
  }
}

TEST_CASE("a pipeline whose head is tied to its embedding trains as one process does: GPT-2") {
  const Model model = with_sgd("gpt2-small:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0");
  const Values expected = train_natively(model, 8);
  for (const int ranks : {2, 4})
    for (const char* schedule : {"1f1b", "zb-h1"})
      check_equal(model, train_on_ranks("pipeline", model, pipeline(ranks, "even", schedule, 4)), expected);
  for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"})
    for (const char* zero : {"0", "1", "2"}) {
      INFO(mesh << ", ZeRO " << zero);
      TrainingConfig replicated = pipeline(4, "3-1", "1f1b", 2);
      replicated.batch = 4;
      replicated.mesh = Mesh::parse(mesh);
      replicated.options["zero"] = zero;
      replicated.options["bucket-cap"] = "3000B";
      check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
    }
}

TEST_CASE("a recomputed forward draws the same dropout masks, so that checkpointing changes nothing") {
  const Model model = small_bert(4, 10);
  const std::vector<Values> kept = train_on_ranks("pipeline", model, pipeline(2, "2-2", "1f1b", 4));
  const std::vector<Values> recomputed =
      train_on_ranks("pipeline", model, pipeline(2, "2-2", "1f1b", 4, "always"));
  for (std::size_t rank = 0; rank < kept.size(); ++rank) CHECK(kept[rank] == recomputed[rank]);
  const Values without = train_natively(small_bert(), 8);
  CHECK(largest_difference(kept[0][0], without[0]) > 1e-9);  // there were masks
}

TEST_CASE("a forward-only pipeline runs and changes no parameter") {
  const Model model = small_bert();
  TrainingConfig config = pipeline(2, "2-2", "1f1b", 4);
  config.options["forward-only"] = "yes";
  const std::vector<Values> states = train_on_ranks("pipeline", model, config);
  const TorchModel start(model, torch::kFloat64, kSeed);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    INFO(model.parameters[i].name);
    const torch::Tensor flat = start.parameters()[i].detach().contiguous();
    const std::vector<double> expected(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    CHECK((states[0][i] == expected || states[1][i] == expected));
  }
}

}  // namespace stepcast::pipeline_correctness_test

#include "sim/replay/convention.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/replay/prediction_options.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::convention_test {
namespace {

OptionTexts pipeline(const std::string& mesh) {
  return {{"model", "llama3-8b"}, {"strategy", "pipeline"}, {"world-size", "64"},
          {"mesh", mesh},         {"precision", "bf16"},    {"micro-batches", "4"}};
}

LikeOptions like(const std::string& convention, const OptionTexts& options) {
  return Convention(convention).added_to(options);
}

}  // namespace

TEST_CASE("megatron sets the distributed optimizer, buckets by replicas, and what tensor and context need") {
  const OptionTexts options = like("megatron", pipeline("pipeline=4,data=4,context=2,tensor=2")).options;
  CHECK(options.at("zero") == "1");
  CHECK(options.at("messages") == "waited");
  CHECK(options.at("precision") == "bf16,gradients=fp32");
  CHECK(options.at("bucket-cap") == "160MB");
  for (const char* setting : {"sequence_parallel=1", "gather_again=1", "ring=1"})
    CHECK_THAT(options.at("model"), Catch::Contains(setting));
  OptionTexts wide = pipeline("pipeline=1,data=64");
  CHECK(like("megatron", wide).options.at("bucket-cap") == "256MB");
  wide = pipeline("pipeline=1,data=40");
  wide["world-size"] = "40";
  CHECK(like("megatron", wide).options.at("bucket-cap") == "160MB");
  CHECK(like("megatron", wide).options.at("model") == "llama3-8b:transformer_engine=1,vocabulary=128256");
}

TEST_CASE("what is given stays, and what has no effect is not set") {
  OptionTexts given = pipeline("pipeline=4,data=8,tensor=2");
  given["zero"] = "0";
  given["precision"] = "bf16,reduction=bf16";
  given["model"] = "llama3-8b:gather_again=0,sequence_parallel=1";
  given["schedule"] = "zb-h1";
  const LikeOptions result = like("megatron", given);
  CHECK(result.options.at("zero") == "0");
  CHECK(result.options.at("precision") == "bf16,reduction=bf16");
  CHECK(result.options.at("model") == given.at("model") + ",transformer_engine=1,vocabulary=128256");
  CHECK_FALSE(result.options.contains("messages"));
  CHECK(result.note == "megatron: bucket-cap 160MB, transformer_engine=1, vocabulary=128256");
  CHECK_FALSE(like("megatron", pipeline("pipeline=4,shard=16")).options.contains("zero"));
  OptionTexts muon = pipeline("pipeline=4,data=8,tensor=2");
  muon["model"] = "llama3-8b:muon=1";
  CHECK_FALSE(like("megatron", muon).options.contains("zero"));
  for (const char* recipe : {"fp8-current", "mxfp8,gather=mxfp8", "nvfp4"}) {
    muon["precision"] = recipe;
    for (const char* convention : {"megatron", "megatron-defaults"})
      CHECK(like(convention, muon).options.at("precision") == recipe + std::string(",gradients=fp32"));
  }
  for (const auto& [precision, expected] :
       {std::pair("bf16,optimizer=int8", "bf16,gradients=fp32,optimizer=int8"),
        {"fp8-delayed,master=bf16,gather=fp8", "fp8-delayed,gather=fp8,gradients=fp32,master=bf16"},
        {"bf16,master=bf16,reduction=bf16", "bf16,master=bf16,reduction=bf16"}}) {
    muon["precision"] = precision;
    CHECK(like("megatron", muon).options.at("precision") == expected);
  }
  muon["precision"] = "bf16,master=bf16";  // which masters that autocast lacks exclude
  muon["strategy"] = "single";
  muon.erase("mesh");
  CHECK(like("torchtitan@2025", muon).options.at("precision") == "bf16,master=bf16");
  muon = pipeline("pipeline=4,data=8,tensor=2");
  muon["model"] = "llama3-8b:muon=1";
  muon["precision"] = "fp16";
  for (const char* convention : {"megatron", "deepspeed"})
    CHECK(like(convention, muon).options.at("precision") == "fp16,reduction=fp16");
  CHECK_FALSE(like("megatron", pipeline("tensor=2")).options.contains("bucket-cap"));  // stages are the rest
  given = pipeline("pipeline=4,data=8,context=2");
  given["model"] = "llama3-8b:ulysses=1";
  CHECK_THAT(like("megatron", given).options.at("model"), !Catch::Contains("ring"));
  given["forward-only"] = "yes";
  CHECK_FALSE(like("megatron", given).options.contains("bucket-cap"));
  given = {{"model", "llama3-8b"}, {"strategy", "fsdp"}, {"sharding", "no_shard"}, {"micro-batches", "2"}};
  CHECK(like("hf", given).options == given);
  CHECK(like("torchtitan@2025", given).options == given);
}

TEST_CASE("recipes of nvfp4 have no userbuffers") {
  OptionTexts given = pipeline("pipeline=4,data=8,tensor=2");
  given["device"] = "gb200";
  for (const auto& [precision, overlap] :
       {std::pair{"bf16", "userbuffers"}, {"mxfp8", "userbuffers"}, {"nvfp4", "megatron"}}) {
    given["precision"] = precision;
    CHECK(like("nemo@26.08", given).options.at("tensor-overlap") == overlap);
  }
}

TEST_CASE("kernels of a convention are not set where a trace has those that it measured") {
  OptionTexts traced = pipeline("pipeline=4,data=8,tensor=2");
  traced["trace"] = "llama.trace.json";
  for (const char* convention : {"megatron", "megatron-defaults", "nemo@26.08"})
    CHECK_THAT(like(convention, traced).options.at("model"),
               !Catch::Contains("transformer_engine") && !Catch::Contains("vocabulary"));
}

TEST_CASE("megatron pads the vocabulary to a multiple of 128 x tensor, unless it is given") {
  for (const auto& [mesh, rows] :
       {std::pair{"pipeline=4,data=8,tensor=2", "128256"}, {"pipeline=2,data=4,tensor=8", "129024"}})
    CHECK_THAT(like("megatron", pipeline(mesh)).options.at("model"),
               Catch::Contains(std::string("vocabulary=") + rows));
  OptionTexts given = pipeline("pipeline=2,data=4,tensor=8");
  given["model"] = "llama3-8b:vocabulary=128512";
  CHECK_THAT(like("megatron", given).options.at("model"), !Catch::Contains("129024"));
}

TEST_CASE("nemo's recipes take userbuffers, but not with nvfp4") {
  OptionTexts options = pipeline("pipeline=4,data=8,tensor=2");
  options["device"] = "b200";
  CHECK(like("nemo@26.08", options).options.at("tensor-overlap") == "userbuffers");
  options["precision"] = "nvfp4";
  CHECK(like("nemo@26.08", options).options.at("tensor-overlap") == "megatron");
}

TEST_CASE("replicas without shards accumulate as DDP does; gathered keys are freed where frameworks do") {
  OptionTexts fsdp{{"model", "llama3-8b"}, {"strategy", "fsdp"},   {"micro-batches", "2"},
                   {"world-size", "8"},    {"device", "h100-sxm"}, {"mesh", "data=8,shard=1"}};
  for (const char* convention : {"torchtitan@2025", "megatron", "deepspeed"})
    CHECK_FALSE(like(convention, fsdp).options.contains("accumulate"));
  fsdp["mesh"] = "shard=1,context=8";
  CHECK(like("torchtitan@2025", fsdp).options.at("accumulate") == "every");
  CHECK_THAT(like("torchtitan@2025", fsdp).options.at("model"), Catch::Contains("gather_kv_again=1"));
  CHECK_THAT(like("megatron", fsdp).options.at("model"), !Catch::Contains("gather_kv_again"));
  CHECK_THAT(like("deepspeed", fsdp).options.at("model"), Catch::Contains("ulysses=1"));
  fsdp["model"] = "llama3-8b:ring=0";
  CHECK_THAT(like("megatron", fsdp).options.at("model"), Catch::Contains("gather_kv_again=1"));
}

TEST_CASE("a convention's conditions on parts of a precision that they do not read are refused") {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("own.yaml",
                   "convention: own\noptions:\n  - {precision: \"bf16,reduction=bf16\", if: "
                   "{precision: \"bf16,master=none\"}}\n");
  CHECK_THROWS_WITH(Convention(path),
                    Catch::Contains("own.yaml:3") && Catch::Contains("without gather, master"));
}

TEST_CASE("help lists every convention with what it sets and when") {
  const std::string text = conventions_text();
  for (const char* part : {"megatron: ", "megatron-defaults: ", "nemo@26.08: ", "torchtitan@2025: ",
                           "torchtitan@2025-08: ", "hf: ", "deepspeed: ", "--zero", "model setting ring",
                           "context > 1, ulysses 0", "strategy ddp or pipeline"})
    CHECK_THAT(text, Catch::Contains(part));
}

TEST_CASE("torchtitan reduces every micro-batch of FSDP, DeepSpeed of ZeRO 2, hf the last one in bf16") {
  OptionTexts options{
      {"model", "llama3-8b"}, {"strategy", "fsdp"}, {"world-size", "8"}, {"precision", "bf16"}};
  CHECK_FALSE(like("torchtitan@2025", options).options.contains("accumulate"));
  options["micro-batches"] = "2";
  CHECK(like("torchtitan@2025", options).options.at("accumulate") == "every");
  CHECK(like("hf", options).options.at("precision") == "bf16,reduction=bf16");
  OptionTexts staged{{"model", "llama3-8b"},
                     {"strategy", "pipeline"},
                     {"world-size", "8"},
                     {"mesh", "pipeline=2,shard=4"},
                     {"precision", "bf16"}};  // whole gradients accumulate in fp32
  CHECK(like("torchtitan@2025", staged).options.at("precision") == "bf16,gradients=fp32");
  staged["mesh"] = "pipeline=2,data=4";
  CHECK(like("torchtitan@2025", staged).options.at("precision") == "bf16");
  options["like"] = "torchtitan@2025";
  const PredictionRequest request = prediction_request(options);
  CHECK(request.training.options.at("accumulate") == "every");
  CHECK(request.costs.convention == "torchtitan@2025: accumulate every");
  OptionTexts shared{{"model", "llama3-8b"}, {"strategy", "ddp"},    {"world-size", "8"},
                     {"zero", "2"},          {"micro-batches", "2"}, {"precision", "bf16"}};
  CHECK(like("deepspeed", shared).options.at("accumulate") == "every");
  shared["zero"] = "1";
  CHECK_FALSE(like("deepspeed", shared).options.contains("accumulate"));
  CHECK(like("deepspeed", shared).options.at("precision") == "bf16,reduction=bf16");
  CHECK(like("deepspeed", shared).options.at("reduce-by") == "all-reduce");
  CHECK(like("deepspeed", shared).options.at("reduce-when") == "waited");
  CHECK(like("deepspeed", shared).options.at("bucket-cap") == "1GB");  // 5e8 elements
  shared["mesh"] = "data=4,context=2";  // seq_parallel_communication_data_type: fp32
  CHECK(like("deepspeed", shared).options.at("bucket-cap") == "2GB");
  CHECK(like("deepspeed", shared).options.at("precision") == "bf16");
}

TEST_CASE("Megatron-DeepSpeed of 2022 all-reduces all gradients at once in bf16, and buckets in fp16") {
  OptionTexts options{
      {"model", "gpt2-small"}, {"strategy", "pipeline"}, {"mesh", "pipeline=2,data=4"}, {"world-size", "8"},
      {"zero", "1"},           {"precision", "bf16"}};
  const auto set = [&](const char* option) {
    const OptionTexts all = like("megatron-deepspeed@2022", options).options;
    return all.contains(option) ? all.at(option) : "";
  };
  CHECK(set("reduce-by") == "all-reduce");
  CHECK(set("reduce-when") == "waited");
  CHECK(set("bucket-cap") == "1TB");
  CHECK(set("model").find("flash=0") != std::string::npos);
  options["zero"] = "2";
  CHECK(set("bucket-cap") == "1GB");
  options["precision"] = "fp16";
  options["zero"] = "1";
  CHECK(set("reduce-by").empty());
  CHECK(set("bucket-cap") == "1GB");
}

TEST_CASE("hf and torchtitan recompute a block up to its last GEMM in an estimate, unless it is given") {
  for (const char* convention : {"hf", "torchtitan@2025"}) {
    INFO(convention);
    OptionTexts options{{"model", "llama3-8b"}, {"strategy", "fsdp"},   {"world-size", "8"},
                        {"precision", "bf16"},  {"device", "h100-sxm"}, {"recompute", "full"}};
    CHECK(like(convention, options).options.at("recomputed") == "needed");
    CHECK(like(convention, options).options.at("logits") == "freed");
    CHECK_FALSE(like("megatron", options).options.contains("recomputed"));
    for (const auto& [name, value] : {std::pair{"trace", "llama.trace.json"}, {"recompute", "none"}}) {
      OptionTexts other = options;
      other[name] = value;
      CHECK_FALSE(like(convention, other).options.contains("recomputed"));
    }
    options["recomputed"] = "whole";
    CHECK(like(convention, options).options.at("recomputed") == "whole");
    options.erase("recomputed");
    options.erase("device");
    CHECK_FALSE(like(convention, options).options.contains("recomputed"));
  }
}

TEST_CASE("hf takes PyTorch's fused attention where a model stores probabilities, unless that is given") {
  OptionTexts options{{"model", "bert-base:sequence=64"}, {"strategy", "single"}, {"device", "h100-sxm"}};
  CHECK(like("hf", options).options.at("model") == "bert-base:sequence=64,flash=1,padding_mask=0");
  options["model"] = "gpt2-small";
  CHECK(like("hf", options).options.at("model") == "gpt2-small:eager=1,flash=1");
  options["model"] = "gpt2-small:flash=0";
  CHECK(like("hf", options).options.at("model") == "gpt2-small:flash=0,eager=1");
}

TEST_CASE("conditions on the device hold for the device of a file, which --device may name") {
  const TemporaryFolder folder;
  const std::string file = folder.write("own.yaml", "own:\n  like: h100-sxm\n  source: a test\n");
  OptionTexts options{{"model", "llama3-8b"}, {"strategy", "fsdp"}, {"world-size", "8"},
                      {"precision", "bf16"},  {"like", "hf"},       {"device-file", file}};
  for (const std::string device : {"", "own", "own:activations=1.1"}) {
    INFO(device);
    options["device"] = device;
    const PredictionRequest request = prediction_request(options);
    CHECK(request.costs.device == (device.empty() ? "own" : device));
    CHECK(request.costs.execution.attention == "cudnn+flash2");
  }
  options["device"] = "h200";
  CHECK_THROWS_WITH(prediction_request(options), Catch::Contains("describes 'own'"));
}

TEST_CASE("a convention of one's own begins as another one") {
  const TemporaryFolder folder;
  const std::string mine = folder.file("mine.yaml");
  const auto write = [&](const std::string& parent) {
    folder.write("mine.yaml", "convention: ours\nlike: " + parent + "\noptions:\n  - {messages: ahead}\n");
  };
  write("megatron");
  const OptionTexts options = like(mine, pipeline("pipeline=4,data=16")).options;
  CHECK(options.at("messages") == "ahead");  // the file's own entry counts
  CHECK(options.at("zero") == "1");
  write(mine);
  CHECK_THROWS_WITH(Convention(mine),
                    Catch::Contains("mine.yaml:2:") && Catch::Contains("megatron-defaults"));
}

TEST_CASE("an unknown convention is refused with the known ones") {
  CHECK_THROWS_WITH(like("megatrom", {}),
                    Catch::Contains("did you mean 'megatron'") && Catch::Contains("hf"));
}

}  // namespace stepcast::convention_test

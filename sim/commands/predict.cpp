#include "sim/commands/predict.hpp"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/cli/result_summary.hpp"
#include "sim/cli/training_options.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/collective_prediction.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kWidestNote = 40;

/// What --help says of --device: every GPU and CPU that is known.
std::string describe_devices() {
  std::string text =
      "NAME[:KEY=VALUE,...]: move the trace to another device by rooflines, layer by layer; without --trace, "
      "estimate it "
      "from the model's layers alone. Settings: a rate by its dtype, memory_bandwidth, kernel_launch, "
      "process (bytes that a "
      "rank holds besides), and of an estimate compute_efficiency, memory_efficiency, attention_efficiency, "
      "rate_spread (by which GPUs of a kind differ; a step waits for the slowest), activations";
  for (const DeviceModel& device : device_models()) text += "\n" + device.name + ": " + device.description;
  return text;
}

void declare(po::options_description& options) {
  declare_training_options(options);
  // clang-format off
  options.add_options()
      ("model", text_value("", "the trace's"), "NAME[:KEY=VALUE,...] or a YAML file")
      ("trace", text_value("", "none"), "what one rank costs, from 'stepcast measure'; or a profile by layer, JSON of [micro-batch][tensor "
       "parallelism][layer] = forward, backward, update in seconds, exchanges of tensors included")
      ("device", text_value("", "the traced one"),
       describe_devices().c_str())
      ("device-file", text_value("", "none"),
       "a device of your own, as 'stepcast fit' writes it; --device is then this one, with settings if need be")
      ("phase-times", text_value("", "none"),
       "without --trace: what is known of one rank's step and micro-batch, as forward=120ms,backward=130ms; also compute "
       "(both), optimizer, input and host (each on one core), stage (of a pipeline, whatever its layers). Layers share a "
       "phase by their flop, with --device as the estimate has it")
      ("gradients", text_value("kept"),
       "kept from step to step, or freed by zero_grad() and made anew by each backward, as since PyTorch 2.0")
      ("host-waits", text_value("step"),
       "of an estimated GPU, when its host, which runs ahead, waits for it: step, where the loss is read, or phase, around "
       "every forward and backward of a micro-batch too, as timers of Megatron do")
      ("trace-device", text_value("", "as the trace says"),
       "with --device and --trace: the known device that is most like the traced one")
      ("precision", text_value("fp32")->value_name("POLICY"),
       "with --device and without --trace: fp32, tf32, bf16 or fp16, then parts that differ: bf16,reduction=bf16; parts are "
       "compute, parameters, gradients, reduction, master, optimizer")
      ("calibration", text_value("", "none"),
       "what communication costs at its endpoints, from 'stepcast calibrate'")
      ("backend", text_value("", "the calibration's, else nccl where there are GPUs"),
       "library whose collectives are predicted: gloo or nccl")
      ("algorithm", po::value<std::vector<std::string>>()->composing(), describe_algorithms().c_str())
      ("cluster", text_value("", "the calibrated machine"),
       "shipped name or YAML file; one rank needs none")
      ("world-size", int_value(1), "number of ranks")
      ("batch", po::value<int>(), "samples per rank and step; default: the trace's only one")
      ("threads", po::value<int>(), "compute threads per rank; default: the trace's only ones")
      ("steps", int_value(12), "steps to replay")
      ("warmup", int_value(2), "steps replayed before and not reported")
      ("compute", text_value("real"),
       "of the run that is predicted: real, or replayed, where ranks wait for the traced times and use no core")
      ("replicas", int_value(1), "replays with other seeds, pooled")
      ("seed", po::value<unsigned>()->default_value(1), "of the resampling")
      ("resample", po::value<bool>()->default_value(true, "yes"),
       "draw measured steps, so that the slowest of the ranks counts (yes), or use medians (no)")
      ("fidelity", text_value("auto"), "of collectives: auto, message or aggregate (NCCL: auto or aggregate)")
      ("exact", po::bool_switch(),
       "replay every rank; else ranks that do the same in the same surroundings are replayed once for all")
      ("scale", text_value("", "nothing"),
       "RESOURCE=FACTOR[,...]: so many times what there is of compute, that of one rank (rank3) or stage (stage0), memory (bandwidth of a device), host (that issues), "
       "endpoints (of a calibration), pageable (copies), latency, a tier of links (nvlink, pcie, smp, network1 at the ports, network2 above, ...) "
       "or a link by its name; 'stepcast explain' tries 1.1 of each")
      ("extrapolate", po::bool_switch(), "allow a batch beyond the traced ones")
      ("pageable-rate", text_value("10GB/s"),
       "copies: what one thread stages between pageable host memory and a device")
      ("pcie-rate", text_value("", "the cluster's"),
       "usable bandwidth of every PCIe link and direction, what a copy from pinned memory gets alone; degraded "
       "links keep their part of it")
      ("nvlink-rate", text_value("", "the cluster's"),
       "usable bandwidth of all NVLinks between a GPU and a switch or another GPU, in each direction")
      ("copy-launch", text_value("5us"), "copies: host time to issue one")
      ("collectives", text_value(),
       "predict a bench file instead of a step: 'all' or names separated by commas")
      ("min", text_value("4B"), "with --collectives: smallest message")
      ("max", text_value("64MiB"), "with --collectives: largest message")
      ("factor", po::value<double>()->default_value(4.0, "4"), "with --collectives: from one size to the next");
  // clang-format on
  declare_timeline(options);
  declare_output(options, "the prediction");
}

Fidelity fidelity_of(const po::variables_map& values) {
  const std::string name = values["fidelity"].as<std::string>();
  if (name == "auto") return Fidelity::kAutomatic;
  if (name == "message") return Fidelity::kMessage;
  if (name == "aggregate") return Fidelity::kAggregate;
  throw UsageError(unknown_name("fidelity", name, {"auto", "message", "aggregate"}));
}

std::optional<int> optional_int(const po::variables_map& values, const std::string& name, int most) {
  return values.count(name) != 0 ? std::optional(int_option(values, name, 1, most)) : std::nullopt;
}

/// A rate above 0. \throws UsageError
BytesPerSecond rate_option(const po::variables_map& values, const std::string& name) {
  const BytesPerSecond rate = bytes_per_second_option(values, name);
  if (rate <= BytesPerSecond(0)) throw UsageError("--" + name + " must be above 0 B/s");
  return rate;
}

/// \throws UsageError when a value is not positive or has no unit
void read_copy_options(const po::variables_map& values, PredictionRequest& request) {
  request.copies.pageable = rate_option(values, "pageable-rate");
  if (!values["pcie-rate"].as<std::string>().empty()) request.pcie = rate_option(values, "pcie-rate");
  if (!values["nvlink-rate"].as<std::string>().empty()) request.nvlink = rate_option(values, "nvlink-rate");
  request.copies.launch = seconds_option(values, "copy-launch");
  if (request.copies.launch < Seconds(0)) throw UsageError("--copy-launch must be at least 0s");
}

/// What both kinds of prediction are asked with.
void read_surroundings(const po::variables_map& values, auto& request) {
  request.calibration = values["calibration"].as<std::string>();
  request.backend = values["backend"].as<std::string>();
  request.algorithms = joined_option(values, "algorithm");
  request.cluster = values["cluster"].as<std::string>();
  request.fidelity = fidelity_of(values);
  request.exact = values["exact"].as<bool>();
}

}  // namespace

AskPrediction asked_here() {
  return [known = std::make_shared<KnownInputs>()](const std::vector<std::string>& words, bool brief) {
    PredictionRequest request = prediction_request(parse_words("predict", words));
    request.brief = brief;
    request.known = known.get();
    return predict(request);
  };
}

PredictionRequest prediction_request(const po::variables_map& values) {
  PredictionRequest request;
  request.training = training_config(values);
  request.strategy = values["strategy"].as<std::string>();
  request.model = values["model"].as<std::string>();
  request.trace = values["trace"].as<std::string>();
  request.device = values["device"].as<std::string>();
  if (const auto file = values["device-file"].as<std::string>(); !file.empty()) {
    const std::string& own = add_device(file).name;
    if (request.device.empty()) request.device = own;
    if (request.device != own && !request.device.starts_with(own + ":"))
      throw UsageError("--device " + request.device + ": --device-file " + file + " describes '" + own + "'");
  }
  request.trace_device = values["trace-device"].as<std::string>();
  if (const auto waits = values["host-waits"].as<std::string>(); waits != "step" && waits != "phase")
    throw UsageError("--host-waits: " + unknown_name("moment", waits, {"step", "phase"}));
  request.host_waits_by_phase = values["host-waits"].as<std::string>() == "phase";
  request.precision = precision_option(values);
  read_surroundings(values, request);
  request.batch = optional_int(values, "batch", kMaxIntOption);
  request.threads = optional_int(values, "threads", kMostThreads);
  request.training.world_size = int_option(values, "world-size", 1);
  read_copy_options(values, request);
  request.extrapolate = values["extrapolate"].as<bool>();
  request.steps = int_option(values, "steps", 1);
  request.warmup_steps = int_option(values, "warmup", 0);
  request.shown_steps = numbers_option(values, "timeline-steps");
  request.replicas = int_option(values, "replicas", 1);
  request.scale = parse_scales(values["scale"].as<std::string>());
  request.resample = values["resample"].as<bool>();
  const std::string compute = values["compute"].as<std::string>();
  require_one_of("compute", compute, {"real", "replayed"});
  request.compute_waits = compute == "replayed";
  request.seed = values["seed"].as<unsigned>();
  try {
    request.phases = parse_phase_times(values["phase-times"].as<std::string>());
  } catch (const InputError& error) {
    throw UsageError(std::string("--phase-times: ") + error.what());
  }
  const std::string gradients = values["gradients"].as<std::string>();
  require_one_of("gradients", gradients, {"kept", "freed"});
  request.gradients_freed = gradients == "freed";
  return request;
}

namespace {

void print_summary(const Result& result) {
  std::vector<double> all;
  for (const auto& rank : result.step_time_s)  // a rank whose device another one drives has nothing to do
    std::copy_if(rank.begin(), rank.end(), std::back_inserter(all), [](double time) { return time > 0.0; });
  if (all.empty()) all = result.step_time_s.front();
  if (const auto free = result.notes.find("endpoints"); free != result.notes.end())
    std::cout << "endpoints " << free->second << '\n';
  std::cout << describe_run(result.configuration) << ", cluster " << result.configuration.cluster << "\n\n";
  Table table({"predicted", "value", ""});
  table.add(
      {"step time", to_text(Seconds(result.median_step_time_s())),
       "p10 " + to_text(Seconds(quantile(all, 0.1))) + ", p90 " + to_text(Seconds(quantile(all, 0.9)))});
  if (result.configuration.data_parallel > 0) table.add({"throughput", throughput_text(result), ""});
  table.add({"bytes sent per rank", to_text(Bytes(result.bytes_sent_per_rank)), "and step"});
  std::string sentences;  // would make the table wider than a screen
  for (const auto& [key, value] : result.notes) {
    if (key == "endpoints") continue;  // said already
    if (value.size() <= kWidestNote)
      table.add({key, value, ""});
    else
      sentences.append(key).append(": ").append(value).append("\n");
  }
  std::cout << table.text() << '\n' << rank_table(result) << balance_line(result) << sentences;
}

/// What was asked, whatever became of the answer: without the options of outputs.
std::vector<std::string> asked_words() {
  static const std::set<std::string> kFlags{"--json", "--force"},
      kWithValue{"-o", "--output", "--timeline", "--timeline-ranks", "--timeline-steps"};
  std::vector<std::string> words;
  for (std::size_t i = 2; i < command_line().size(); ++i) {
    const std::string& word = command_line()[i];
    const std::string name = word.starts_with("-o") ? "-o" : word.substr(0, word.find('='));
    if (kWithValue.contains(name))
      i += word == name ? 1 : 0;
    else if (!kFlags.contains(name))
      words.push_back(word);
  }
  return words;
}

ExitCode predict_step(const po::variables_map& values) {
  check_output(values);
  check_timeline(values);
  Result result = predict(prediction_request(values));
  result.context = make_run_context(kResultSchema, command_line());
  result.context.seed = values["seed"].as<unsigned>();
  result.asked = asked_words();
  result.context.threads = result.configuration.threads;
  const bool printed = write_output(values, [&] { return to_file_text(result); });
  write_timeline_option(values, result);
  if (!printed) print_summary(result);
  return ExitCode::kDone;
}

CollectiveRequest collective_request(const po::variables_map& values) {
  CollectiveRequest request;
  request.collectives = list_option(values, "collectives");
  read_surroundings(values, request);
  request.world_size = values["world-size"].defaulted() ? 2 : values["world-size"].as<int>();
  request.smallest = bytes_option(values, "min");
  request.largest = bytes_option(values, "max");
  request.factor = values["factor"].as<double>();
  return request;
}

ExitCode predict_bench(const po::variables_map& values) {
  for (const char* name : {"strategy", "timeline"})
    if (values.count(name) != 0) throw UsageError(std::string("--collectives goes without --") + name);
  if (!values["device"].defaulted()) throw UsageError("--collectives goes without --device");
  check_output(values);
  Bench bench = predict_collectives(collective_request(values));
  const std::vector<std::string> warnings = std::move(bench.context.warnings);
  bench.context = make_run_context("stepcast.bench/1", command_line());
  bench.context.warnings = warnings;
  if (write_output(values, [&] { return to_file_text(bench); })) return ExitCode::kDone;
  const bool chosen = std::any_of(bench.rows.begin(), bench.rows.end(),
                                  [](const BenchRow& row) { return !row.algorithm.empty(); });
  std::vector<std::string> columns{"collective", "message", "time", "algbw", "busbw"};
  if (chosen) columns.emplace_back("algorithm");
  Table table(columns);
  for (const BenchRow& row : bench.rows) {
    const double algbw = algbw_bytes_per_s(row);
    std::vector<std::string> cells{
        row.collective, to_text(Bytes(row.message_bytes)), to_text(Seconds(row.median_time_s())),
        to_text(BytesPerSecond(algbw)),
        to_text(BytesPerSecond(algbw * bus_factor(row.collective, bench.world_size)))};
    if (chosen) cells.push_back(row.algorithm);
    table.add(cells);
  }
  for (const std::string& warning : warnings) std::cout << warning << '\n';
  std::cout << "predicted, world size " << bench.world_size << ", " << bench.backend << "\n\n"
            << table.text();
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  return values.count("collectives") != 0 ? predict_bench(values) : predict_step(values);
}

const Registration<Command> kPredict{
    commands(),
    {.name = "predict",
     .description = "Predicts a training step, or collectives, without running them.",
     .value =
         {.declare = declare,
          .run = run,
          .usage =
              "stepcast predict --strategy NAME --trace FILE --calibration FILE --world-size N [options]",
          .group = "Predict and compare",
          .answer = [](const po::variables_map& values) { return predict(prediction_request(values)); }},
     .order = 20}};

}  // namespace
}  // namespace stepcast

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/file.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/measure/gpu_watch.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/strategies/options.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {
namespace {

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("model", text_value(), "NAME[:KEY=VALUE,...] or a YAML file")
      ("batch", text_value("32"), "batch sizes, separated by commas")
      ("tensor", int_value(1), "one rank's part of a model whose layers so many ranks share")
      ("context", int_value(1), "one rank's part of a model whose sequences so many ranks share")
      ("expert", int_value(1), "one rank's part of a model whose experts so many ranks share")
      ("stage", text_value("whole", "whole")->value_name("I/N"),
       "of a pipeline of N stages only the I-th, alone on this device, with the input and the gradients it would receive")
      ("split", text_value("even"), "of --stage: blocks per stage (6-2-2-2, or 4x3), even, or ratio:2-1-1 (shares)")
      ("time-limit", text_value("none")->value_name("TIME"), "of each launch, after which five steps per batch size are enough")
      ("threads", text_value("1"), "numbers of compute threads, separated by commas")
      ("steps", int_value(30), "steps per batch size and launch")
      ("warmup", int_value(5), "steps before, not kept")
      ("launches", int_value(1), "times that the measurement is started anew; launches vary more than steps")
      ("budget", text_value("30s")->value_name("TIME"),
       "of each launch, for repeating steps that were disturbed: others took processor time, or the machine was slow")
      ("data", text_value("", "synthetic"), "folder with CIFAR-10's data_batch_*.bin")
      ("seed", po::value<unsigned>()->default_value(1), "of the initial parameters and the order of the data")
      ("recompute", text_value("none")->value_name("WHAT"),
       "selective: backwards compute attention again from q, k and v; replays know of whole blocks without")
      ("accumulating", po::bool_switch(),
       "also micro-batches that follow another one, for predictions with --micro-batches")
      ("allow-reference-blas", po::bool_switch(), "measure although matrix products are many times too slow")
      ("append", po::bool_switch(), "add the launches, or the stage, to those in the file, measured at another time");
  // clang-format on
  declare_device_options(options);
  declare_output(options, "the trace");
}

std::string model_of(const po::variables_map& values) {
  TrainingConfig config;
  config.tensor = int_option(values, "tensor", 1);
  config.context = int_option(values, "context", 1);
  config.expert = int_option(values, "expert", 1);
  return shared_by(values["model"].as<std::string>(), config);
}

/// One rank's part, as it is measured.
Model load_part(const po::variables_map& values) {
  const Recomputation asked = parse_recompute(values["recompute"].as<std::string>());
  if (asked != Recomputation{} && asked.part != RecomputedPart::kCoreAttention)
    throw UsageError(
        "--recompute " + to_text(asked) +
        ": measure takes none or selective; forwards that run again as a whole are in every trace, "
        "and per-op is forecast for --device alone");
  return recomputing(load_model(model_of(values)), asked.part);
}

[[noreturn]] void refuse_list(const std::string& name, const std::string& text) {
  throw UsageError("--" + name + " takes whole numbers from 1, separated by commas: 16,32; got " + text);
}

/// `16,32` → 16, 32; ascending, without duplicates.
std::vector<int> positive_list(const po::variables_map& values, const std::string& name) {
  const std::string text = values[name].as<std::string>();
  std::vector<int> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.empty() || word.size() > 7 || word.find_first_not_of("0123456789") != std::string::npos ||
        std::stoi(word) < 1)
      refuse_list(name, text);
    numbers.push_back(std::stoi(word));
    begin = end + 1;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

/// The segments of the stage that is asked for; none: all.
std::vector<int> stage_segments(const po::variables_map& values, const Model& model) {
  const std::string text = values["stage"].as<std::string>();
  const std::string split = values["split"].as<std::string>();
  if (text == "whole") {
    if (!values["split"].defaulted()) throw UsageError("--split goes with --stage, such as --stage 1/4");
    return {};
  }
  const std::vector<std::string> words = parts_of(text, '/');
  const auto stage = positive_number(words.front());
  const auto stages = positive_number(words.back());
  if (words.size() != 2 || !stage || !stages || *stage > *stages)
    throw UsageError("--stage takes I/N, the I-th of N stages, from 1/N to N/N; got " + text);
  if (split == "balanced")
    throw UsageError(
        "--split balanced needs measured times, and here they are only made; say the blocks, such as " +
        split_text(model, split_model(model, "even", *stages, {})));
  return split_model(model, split, *stages, {}).at(static_cast<std::size_t>(*stage - 1));
}

/// The GPU, or this host's processor.
std::string computing_device(const po::variables_map& values) {
  const std::unique_ptr<DeviceQueue> device = device_option(values);
  return device == nullptr ? make_run_context("", {}).cpu_model : device->device();
}

/// \throws InputError where an entry has some of these segments, and other ones besides
void refuse_overlap(const Trace& trace, const std::string& path, const Model& model, int first, int end) {
  for (const TraceEntry& entry : trace.entries) {
    if (entry.end_segment() <= first || end <= entry.first_segment) continue;
    if (entry.first_segment == first && entry.end_segment() == end) continue;
    throw InputError(path + ": holds segments " + entry.segments.front().name + " to " +
                     entry.segments.back().name + " in one; " +
                     model.segments[static_cast<std::size_t>(first)].name + " to " +
                     model.segments[static_cast<std::size_t>(end - 1)].name +
                     " cannot be added to them: stages of one file are of one split");
  }
}

/// What an earlier call measured. \throws InputError when that was something else
Trace earlier_launches(const po::variables_map& values, const std::string& path, const Model& model,
                       const std::vector<int>& segments) {
  Trace trace = load_trace(path);
  if (trace.model != model.specification)
    throw InputError(path + ": is a trace of '" + trace.model + "'; launches of '" + model.specification +
                     "' cannot be added to it");
  if (trace.precision != to_text(precision_option(values)))
    throw InputError(path + ": was measured in " + trace.precision + ", and this is " +
                     to_text(precision_option(values)));
  if (const std::string asked = to_text(model.recomputed_part); trace.recompute != asked)
    throw InputError(path + ": was measured with --recompute " + trace.recompute + ", and this is " + asked);
  const std::string here = computing_device(values);
  if (trace.device != here)
    throw InputError(path + ": was measured on '" + trace.device + "', and this is '" + here + "'");
  refuse_overlap(trace, path, model, segments.empty() ? 0 : segments.front(),
                 segments.empty() ? static_cast<int>(model.segments.size()) : segments.back() + 1);
  return trace;
}

Trace measure_here(const po::variables_map& values, const Model& model, int threads) {
  MeasureOptions options;
  options.batches = positive_list(values, "batch");
  options.threads = threads;
  options.segments = stage_segments(values, model);
  options.steps = int_option(values, "steps", 1);
  options.warmup_steps = int_option(values, "warmup", 0);
  options.seed = values["seed"].as<unsigned>();
  options.data_folder = values["data"].as<std::string>();
  options.accumulating = values["accumulating"].as<bool>();
  options.budget_s = budget_option(values);
  options.precision = precision_option(values);
  if (const std::string limit = values["time-limit"].as<std::string>(); limit != "none")
    options.limit_s = parse_seconds(limit, "--time-limit").count();
  const std::unique_ptr<DeviceQueue> device = device_option(values);
  options.device = device.get();
  if (device == nullptr) check_blas(values["allow-reference-blas"].as<bool>());
  std::optional<GpuWatch> watch;
  if (device != nullptr) watch.emplace(device->device(), gpu_driver(device->bus()));
  Progress progress("measuring " + model.specification, (options.accumulating ? 3 : 2) * options.steps *
                                                            static_cast<int>(options.batches.size()));
  options.on_step = [&progress] { progress.advance(); };
  Trace trace = torch_engine().measure_trace(model, options);
  if (watch) trace.context.gpu = watch->report();
  return trace;
}

/// One launch with one number of threads, as a program of its own.
Trace measure_anew(const po::variables_map& values, int threads) {
  std::vector<std::string> words{command_line().front(),  "measure", "--json",        "--threads",
                                 std::to_string(threads), "--model", model_of(values)};
  for (const char* name :
       {"batch", "data", "budget", "device", "precision", "time-limit", "stage", "recompute"})
    if (const std::string value = values[name].as<std::string>(); !value.empty())
      words.insert(words.end(), {std::string("--") + name, value});
  for (const char* name : {"steps", "warmup"})
    words.insert(words.end(), {std::string("--") + name, std::to_string(values[name].as<int>())});
  words.insert(words.end(), {"--seed", std::to_string(values["seed"].as<unsigned>())});
  if (!values["split"].defaulted()) words.insert(words.end(), {"--split", values["split"].as<std::string>()});
  if (values["accumulating"].as<bool>()) words.emplace_back("--accumulating");
  if (values["allow-reference-blas"].as<bool>()) words.emplace_back("--allow-reference-blas");
  return nlohmann::json::parse(output_of(threads, words)).get<Trace>();
}

double sum_of_medians(const TraceEntry& entry) {
  double sum = 0.0;
  for (const auto& samples :
       {entry.input_s, entry.zero_grad_s(), entry.loss_s, entry.optimizer_s(), entry.host_s})
    sum += median(samples);
  for (const SegmentTrace& segment : entry.segments)
    sum += median(segment.forward_s) + median(segment.backward_s);
  return sum;
}

/// The phases of such a step are those of the continuous one, only slower or faster.
void print_other_pace(const TraceEntry& entry) {
  const bool waits = entry.pace == StepContext::kWaiting;
  std::cout << "sum of the phases after "
            << (waits ? "waiting for another thread: " : "another micro-batch: ")
            << to_text(Seconds(sum_of_medians(entry))) << '\n';
}

void print_entry(const TraceEntry& entry) {
  if (entry.pace != StepContext::kContinuous) return print_other_pace(entry);
  const auto time = [](const std::vector<double>& samples) { return to_text(Seconds(median(samples))); };
  const auto spread = [](const std::vector<double>& samples) {
    return percent_text((quantile(samples, 0.9) - quantile(samples, 0.1)) / median(samples));
  };
  std::cout << "\nbatch " << entry.batch << ", " << entry.threads
            << (entry.threads == 1 ? " thread, " : " threads, ") << entry.steps() << " steps\n";
  Table table({"segment", "forward", "spread", "backward", "spread", "saved"});
  const double sum = sum_of_medians(entry);
  for (const SegmentTrace& segment : entry.segments)
    table.add({segment.name, time(segment.forward_s), spread(segment.forward_s), time(segment.backward_s),
               spread(segment.backward_s), to_text(Bytes(segment.saved_bytes))});
  std::cout << table.text() << '\n';
  Table rest({"phase", "median", "spread"});
  const auto add = [&](const char* name, const std::vector<double>& samples) {
    rest.add({name, time(samples), spread(samples)});
  };
  add("input", entry.input_s);
  add("zero_grad", entry.zero_grad_s());
  add("loss", entry.loss_s);
  add("optimizer", entry.optimizer_s());
  add("host", entry.host_s);
  rest.add({"sum with segments", to_text(Seconds(sum)), ""});
  if (const std::optional<TraceEntry> issue = entry.issue())
    rest.add({"issued by the host", to_text(Seconds(sum_of_medians(*issue))), ""});
  add("step by segments", entry.step_s);
  add("step of the whole graph", entry.native_step_s);
  std::cout << rest.text() << "sum / whole graph = " << sum / median(entry.native_step_s) << '\n';
  if (entry.peak_bytes > 0.0) std::cout << "peak memory " << to_text(Bytes(entry.peak_bytes)) << '\n';
}

/// What makes the steps that were kept doubtful.
std::vector<std::string> doubts(const Trace& trace) {
  std::vector<std::string> result;
  for (const TraceEntry& entry : trace.entries)
    if (entry.disturbed)
      result.push_back("batch " + std::to_string(entry.batch) + ", " +
                       nlohmann::json(entry.pace).get<std::string>() +
                       ": did not converge: too few undisturbed steps came within the budget, and the " +
                       std::to_string(entry.steps()) + " least disturbed ones were kept");
  return result;
}

void print_machine(const Trace& trace) {
  std::size_t kept = 0, aside = 0;
  for (const TraceEntry& entry : trace.entries) kept += entry.steps();
  for (const TraceEntry& entry : trace.set_aside) aside += entry.steps();
  std::cout << '\n'
            << describe(trace.machine_speed()) << "; " << counted(kept, "step") << " kept, " << aside
            << " set aside\n";
  for (const std::string& doubt : doubts(trace)) std::cout << "! " << doubt << '\n';
}

void finish(const po::variables_map& values, Trace& trace, const Model& model) {
  RunContext context = make_compute_context(kTraceSchema, command_line(), trace.entries.front().threads,
                                            values["seed"].as<unsigned>());
  context.gpu = std::move(trace.context.gpu);
  trace.context = std::move(context);
  trace.device = computing_device(values);
  trace.lineage = {make_ancestor("model", model.path)};
  for (std::string& doubt : doubts(trace)) trace.context.warnings.push_back(std::move(doubt));
  for (std::string& doubt : doubts(trace.context.gpu)) trace.context.warnings.push_back(std::move(doubt));
  if (write_output(
          values, [&] { return to_file_text(trace); }, values["append"].as<bool>()))
    return;
  std::cout << trace.model << " on " << trace.device << ", " << trace.context.blas << '\n';
  for (const TraceEntry& entry : trace.entries) print_entry(entry);
  print_machine(trace);
}

ExitCode run(const po::variables_map& values) {
  if (values.count("model") == 0) throw UsageError("--model is missing; see 'stepcast help measure'");
  const Model model = load_part(values);
  const std::vector<int> segments = stage_segments(values, model);
  const std::vector<int> threads = positive_list(values, "threads");
  const int launches = int_option(values, "launches", 1);
  const bool append = values["append"].as<bool>();
  if (append && values.count("output") == 0) throw UsageError("--append needs the file to add to: -o FILE");
  check_output(values, append);
  std::optional<Trace> earlier;
  if (append && std::filesystem::exists(values["output"].as<std::string>()))
    earlier = earlier_launches(values, values["output"].as<std::string>(), model, segments);
  static_cast<void>(budget_option(values));
  Trace trace;
  if (launches == 1 && threads.size() == 1) {
    require_thread_environment(threads.front(), command_line());
    trace = measure_here(values, model, threads.front());
  } else {
    std::vector<Trace> parts;
    for (int launch = 0; launch < launches; ++launch)
      for (const int count : threads) parts.push_back(measure_anew(values, count));
    trace = torch_engine().merge_launches(parts);
  }
  if (earlier) {
    earlier->context.gpu = trace.context.gpu;
    trace = torch_engine().merge_launches({*earlier, trace});
  }
  finish(values, trace, model);
  return ExitCode::kDone;
}

const Registration<Command> kMeasure{
    commands(),
    {.name = "measure",
     .description = "Measures what one training step costs on one rank, segment by segment.",
     .value = {.declare = declare,
               .run = run,
               .usage = "stepcast measure --model NAME --batch 16,32 -o FILE [options]",
               .group = "Measure"},
     .order = 10}};

}  // namespace
}  // namespace stepcast

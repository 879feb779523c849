#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "core/file.hpp"
#include "core/specification.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "models/given_layer.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/measure/gpu_watch.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/options.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast::measure_command {
namespace {

std::string model_of(const po::variables_map& values) {
  Mesh mesh;
  for (const char* name : {"context", "expert", "tensor"}) mesh.set(name, int_option(values, name, 1));
  return shared_by(text_option(values, "model"), mesh);
}

/// One rank's shard, as it is measured.
Model load_part(const po::variables_map& values) {
  const Recomputation asked = parse_recompute(text_option(values, "recompute"));
  if (asked != Recomputation{} && asked.part != RecomputedPart::kCoreAttention)
    throw UsageError(
        "--recompute " + to_text(asked) +
        ": measure takes none or selective; recomputation of whole blocks is forecast from every trace, and "
        "of other parts for --device only");
  return recomputing(load_model(model_of(values)), asked.part);
}

/// `8x128:vocabulary=512`.
ScriptQuestion question_of(const po::variables_map& values) {
  ScriptQuestion question{.path = text_option(values, "model"), .shape = {}};
  question.optimizer = text_option(values, "optimizer");
  require_one_of("optimizer", question.optimizer, {"sgd", "adam"});
  const Specification input = Specification::parse("--input", text_option(values, "input"));
  question.shape = parse_shape(input.file, "--input");
  if (question.shape.size() < 2)
    throw UsageError("--input {}: expected samples and the shape of one, for example 32x3x224x224",
                     input.file);
  for (const auto& [key, value] : input.overrides) {
    question.vocabulary = positive_number(value).value_or(0);
    if (key != "vocabulary" || question.vocabulary < 2)
      throw UsageError("--input takes SHAPE or SHAPE:vocabulary=N with N from 2, got :{}={}", key, value);
  }
  if (question.vocabulary > 0 && question.shape.size() != 2)
    throw UsageError("--input: tokens have the shape SAMPLESxPOSITIONS, got {}", input.file);
  return question;
}

/// `16,32` → 16, 32; ascending, without duplicates.
std::vector<int> positive_list(const po::variables_map& values, const std::string& name) {
  if (name == "batch" && values[name].defaulted() && values.count("input") != 0)
    return {static_cast<int>(question_of(values).shape.front())};
  const std::string text = text_option(values, name);
  std::set<int> numbers;
  for (const std::string& word : parts_of(text, ',')) {
    const std::optional<int> number = positive_number(word);
    if (!number)
      throw UsageError("--" + name + " takes whole numbers from 1, separated by commas: 16,32; got " + text);
    numbers.insert(*number);
  }
  return {numbers.begin(), numbers.end()};
}

/// The segments of --stage; empty: all.
std::vector<int> stage_segments(const po::variables_map& values, const Model& model) {
  const std::string text = text_option(values, "stage");
  const std::string split = text_option(values, "split");
  if (text == "whole") {
    if (!values["split"].defaulted()) throw UsageError("--split requires --stage, for example --stage 1/4");
    return {};
  }
  const std::vector<std::string> words = parts_of(text, '/');
  const auto stage = positive_number(words.front());
  const auto stages = positive_number(words.back());
  if (words.size() != 2 || !stage || !stages || *stage > *stages)
    throw UsageError("--stage takes I/N, the I-th of N stages, from 1/N to N/N; got " + text);
  if (split == "balanced")
    throw UsageError(
        "--split balanced needs measured times, which do not exist yet; give the blocks, for example " +
        split_text(model, split_model(model, "even", *stages, {})));
  return split_model(model, split, *stages, {}).at(*stage - 1);
}

/// The GPU, or this host's CPU.
std::string computing_device(const po::variables_map& values) {
  const std::unique_ptr<DeviceStream> device = device_option(values);
  return device == nullptr ? make_run_context("", {}).cpu_model : device->device();
}

/// \throws InputError if an entry has some of these segments and others
void reject_overlap(const Trace& trace, const std::string& path, const Model& model, int first, int end) {
  for (const TraceEntry& entry : trace.entries) {
    if (entry.end_segment() <= first || end <= entry.first_segment) continue;
    if (entry.first_segment == first && entry.end_segment() == end) continue;
    throw InputError(path + ": contains segments " + entry.segments.front().name + " to " +
                     entry.segments.back().name + " in one; " + model.segments[first].name + " to " +
                     model.segments[end - 1].name +
                     " cannot be added to them: all stages of a file must have one split");
  }
}

/// The trace of an earlier call. \throws InputError if it is of another model, precision, recomputation or
/// device
Trace earlier_launches(const po::variables_map& values, const std::string& path, const Model& model,
                       const std::vector<int>& segments) {
  Trace trace = load_trace(path);
  const auto require = [&](const std::string& theirs, const std::string& own, const char* difference) {
    if (theirs != own) throw InputError("{}: {}", path, fmt::format(fmt::runtime(difference), theirs, own));
  };
  require(trace.model, model.specification, "is a trace of '{}'; launches of '{}' cannot be added to it");
  require(trace.precision, to_text(precision_option(values)), "was measured in {}, and this is {}");
  require(trace.recompute, to_text(model.recomputed_part),
          "was measured with --recompute {}, and this is {}");
  require(trace.device, computing_device(values), "was measured on '{}', and this is '{}'");
  reject_overlap(trace, path, model, segments.empty() ? 0 : segments.front(),
                 segments.empty() ? static_cast<int>(model.segments.size()) : segments.back() + 1);
  return trace;
}

/// Memory of this host that programs can still take, as the kernel estimates it.
Bytes available_memory() {
  std::istringstream words(read_file("/proc/meminfo"));
  for (std::string word; words >> word;)
    if (double kibibytes = 0.0; word == "MemAvailable:" && words >> kibibytes)
      return Bytes(kKibi * kibibytes);
  return Bytes(std::numeric_limits<double>::infinity());
}

/// \throws CapabilityError if parameters, gradients, optimizer and saved activations do not fit into memory
void check_memory(const po::variables_map& values, const Model& whole, std::vector<int> segments) {
  if (text_option(values, "device") != "cpu") return;
  const Model model = in_precision(whole, precision_option(values), false);
  if (segments.empty()) segments = whole_numbers(0, model.segments.size());
  const TrainingConfig config{.batch = positive_list(values, "batch").back()};
  Bytes needed;
  for (const MemoryChange& held : LocalStep(model, config, segments).take().resident) needed += held.size;
  for (const int segment : segments) needed += 1.0 * config.batch * model.segments[segment].saved.size;
  if (const Bytes available = available_memory(); needed > available)
    throw CapabilityError(
        "--model {} with batch {} needs {} of memory or more, and this host has {} available; take a smaller "
        "--batch, or --stage I/N to measure a part of the model",
        model.specification, config.batch, to_text(needed), to_text(available));
}

Trace measure_here(const po::variables_map& values, const Model& model, int threads) {
  MeasureOptions options;
  options.batches = positive_list(values, "batch");
  options.threads = threads;
  options.segments = stage_segments(values, model);
  options.steps = int_option(values, "steps", 1);
  options.warmup_steps = int_option(values, "warmup", 0);
  options.seed = values["seed"].as<unsigned>();
  options.data_folder = text_option(values, "data");
  options.accumulating = flag_option(values, "accumulating");
  options.budget_s = budget_option(values);
  options.precision = precision_option(values);
  if (const std::string limit = text_option(values, "time-limit"); limit != "none")
    options.limit_s = seconds_option(values, "time-limit").count();
  const std::unique_ptr<DeviceStream> device = device_option(values);
  options.device = device.get();
  if (device == nullptr) check_blas(flag_option(values, "allow-reference-blas"));
  GpuWatch watch(device.get());
  Progress progress("measuring " + model.specification, (options.accumulating ? 3 : 2) * options.steps *
                                                            static_cast<int>(options.batches.size()));
  options.on_step = [&progress] { progress.advance(); };
  Trace trace = torch_engine().measure_trace(model, options);
  trace.context.gpu = watch.report();
  return trace;
}

/// Measures one launch with one number of threads in a new process, by this command line.
Trace measure_anew(int threads) {
  std::vector<std::string> words = without_options(
      command_line(), {"--launches", "--threads", "--output", "-o"}, {"--append", "--force", "--json"});
  std::erase_if(words, [](const std::string& word) { return word.starts_with("-o"); });
  words.insert(words.end(), {"--json", "--threads", std::to_string(threads)});
  return nlohmann::json::parse(output_of(threads, words)).get<Trace>();
}

/// Sum of the medians of a step's phases, host time excluded. \param issue launch overhead instead of times
double sum_of_medians(const TraceEntry& entry, bool issue) {
  const auto of = [&](const std::vector<double>& time_s, const std::vector<double>& issue_s) {
    return median(issue ? issue_s : time_s);
  };
  double sum = of(entry.input_s, entry.input_issue_s) + of(entry.loss_s, entry.loss_issue_s) +
               median(entry.sum(issue ? &SegmentTrace::zero_grad_issue_s : &SegmentTrace::zero_grad_s)) +
               median(entry.sum(issue ? &SegmentTrace::optimizer_issue_s : &SegmentTrace::optimizer_s));
  for (const SegmentTrace& segment : entry.segments)
    sum += of(segment.forward_s, segment.forward_issue_s) + of(segment.backward_s, segment.backward_issue_s);
  return sum;
}

/// The phases of such a step are those of the continuous one, only slower or faster.
void print_other_pace(const TraceEntry& entry) {
  const bool waits = entry.pace == StepContext::kWaiting;
  std::cout << "sum of the phases after "
            << (waits ? "waiting for another thread: " : "another micro-batch: ")
            << to_text(Seconds(sum_of_medians(entry, false) + median(entry.host_s))) << '\n';
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
  const double sum = sum_of_medians(entry, false) + median(entry.host_s);
  for (const SegmentTrace& segment : entry.segments)
    table.add({segment.name, time(segment.forward_s), spread(segment.forward_s), time(segment.backward_s),
               spread(segment.backward_s), to_text(Bytes(segment.saved_bytes))});
  std::cout << table.text() << '\n';
  Table rest({"phase", "median", "spread"});
  const auto add = [&](const char* name, const std::vector<double>& samples) {
    rest.add({name, time(samples), spread(samples)});
  };
  add("input", entry.input_s);
  add("zero_grad", entry.sum(&SegmentTrace::zero_grad_s));
  add("loss", entry.loss_s);
  add("optimizer", entry.sum(&SegmentTrace::optimizer_s));
  add("host", entry.host_s);
  rest.add({"sum with segments", to_text(Seconds(sum)), ""});
  if (!entry.loss_issue_s.empty())
    rest.add({"launch overhead", to_text(Seconds(sum_of_medians(entry, true))), ""});
  add("step by segments", entry.step_s);
  add("step of the whole graph", entry.native_step_s);
  std::cout << rest.text() << "sum / whole graph = " << sum / median(entry.native_step_s) << '\n';
  if (entry.peak_bytes > 0.0) std::cout << "peak memory " << to_text(Bytes(entry.peak_bytes)) << '\n';
}

/// Reasons to doubt the steps that were kept.
std::vector<std::string> doubts(const Trace& trace) {
  std::vector<std::string> result;
  for (const TraceEntry& entry : trace.entries)
    if (entry.with_interference)
      result.push_back(fmt::format(
          "batch {}, {}: did not converge: too few steps without interference came within the budget; the {} "
          "with the least were kept",
          entry.batch, nlohmann::json(entry.pace).get<std::string>(), entry.steps()));
  return result;
}

void print_machine(const Trace& trace) {
  std::cout << fmt::format("\n{}; {} kept, {} rejected\n", describe(trace.machine_speed()),
                           counted(sum_of(trace.entries, &TraceEntry::steps), "step"),
                           sum_of(trace.rejected, &TraceEntry::steps));
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
          values, [&] { return to_file_text(trace); }, flag_option(values, "append")))
    return;
  std::cout << trace.model << " on " << trace.device << ", " << trace.context.blas << '\n';
  for (const TraceEntry& entry : trace.entries) print_entry(entry);
  print_machine(trace);
}

/// Writes the description of a TorchScript file beside it. A new process runs the network.
void describe(const po::variables_map& values) {
  const std::string program = text_option(values, "model");
  const std::string path = program + ".yaml",
                    text = output_of(1, {command_line().front(), "measure", "--model", program, "--input",
                                         text_option(values, "input"), "--optimizer",
                                         text_option(values, "optimizer"), "--describe"});
  if (std::filesystem::exists(path) && read_file(path) == text) return;
  write_file(path, text, flag_option(values, "force"));
  fmt::print(stderr, "{} describes {}\n", path, program);
}

/// \returns true if there is nothing else to do
bool describes(const po::variables_map& values) {
  const bool only = flag_option(values, "describe");
  if (values.count("input") == 0) {
    if (only || !values["optimizer"].defaulted())
      throw UsageError("--{} requires --input", only ? "describe" : "optimizer");
    return false;
  }
  if (!is_torch_script(text_option(values, "model")))
    throw UsageError("--input belongs to a TorchScript file; {} states its own",
                     text_option(values, "model"));
  if (only)
    std::cout << torch_engine().describe_script(question_of(values));
  else
    describe(values);
  return only;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("model") == 0) throw UsageError("--model is missing; see 'stepcast help measure'");
  if (describes(values)) return ExitCode::kDone;
  const Model model = load_part(values);
  const std::vector<int> segments = stage_segments(values, model);
  const std::vector<int> threads = positive_list(values, "threads");
  const int launches = int_option(values, "launches", 1);
  check_memory(values, model, segments);
  const bool append = flag_option(values, "append");
  if (append && values.count("output") == 0)
    throw UsageError("--append requires the file to add to: -o FILE");
  check_output(values, append);
  std::optional<Trace> earlier;
  if (append && std::filesystem::exists(text_option(values, "output")))
    earlier = earlier_launches(values, text_option(values, "output"), model, segments);
  budget_option(values);
  Trace trace;
  if (launches == 1 && threads.size() == 1) {
    require_thread_environment(threads.front(), command_line());
    trace = measure_here(values, model, threads.front());
  } else {
    std::vector<Trace> parts;
    for (int launch = 0; launch < launches; ++launch)
      for (const int count : threads) parts.push_back(measure_anew(count));
    trace = merge_launches(parts);
  }
  if (earlier) {
    earlier->context.gpu = trace.context.gpu;
    trace = merge_launches({*earlier, trace});
  }
  finish(values, trace, model);
  return ExitCode::kDone;
}

const Registration<Command> kMeasure{commands(), "measure", {.run = run}, 10};

}  // namespace
}  // namespace stepcast::measure_command

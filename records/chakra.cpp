#include "models/chakra.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "records/result.hpp"
#include "schedule/operations.hpp"

/// Writes execution traces of Chakra.
namespace stepcast {
namespace {

constexpr double kNanosecond = 1e-9;

std::string group_name(const Schedule& schedule, int group) {
  return static_cast<int>(schedule.groups[group].ranks.size()) == schedule.world_size
             ? "0"
             : std::to_string(group + 1);
}

/// The nodes of one rank. What computes on the rank's main thread is a chain. An operation with hooks is
/// divided where they begin; time that no dependency explains, such as a launch, is a node of its own.
struct RankNodes {
  const Schedule& schedule;
  const Result& result;
  int rank;

  std::vector<ChakraNode> take() {
    double begin_s = std::numeric_limits<double>::infinity();  // spans count from the begin of rank 0
    for (const Span& one : result.spans)
      if (one.rank == rank) spans[one.name] = &one, begin_s = std::min(begin_s, one.start_s);
    if (!spans.empty()) ready_s = begin_s;
    std::vector<int> last_hook(program.ops.size(), -1);  // by parent
    for (std::size_t i = 0; i < program.ops.size(); ++i)
      if (program.ops[i].within >= 0) last_hook[program.ops[i].within] = static_cast<int>(i);
    for (const auto [i, op] : enumerated(program.ops)) {
      const bool divides = open >= 0 && static_cast<int>(i) < last_hook[open];  // starts between hooks
      if (op.within < 0 && !divides) close();
      if (op.within >= 0 && open == op.within) advance(span(op).start_s);
      add(static_cast<int>(i), op);
      if (op.within >= 0 && open == op.within && op.stream == Stream::kCompute) open_from = span(op).end_s;
      const bool suspends =
          op.exchange >= 0 && std::holds_alternative<Collective>(op.action) && !is_shift(op);
      if (open < 0 || op.within != open || !suspends) continue;
      wait_for(static_cast<int>(i), chained);
      ready_s = open_from = span(op).end_s;
    }
    close();
    for (const Done& one : done) ready_s = std::max(ready_s, one.end_s);  // also what nothing waits for
    const double step_s = rank < std::ssize(result.breakdown) ? result.breakdown[rank].step_s() : 0.0;
    if (begin_s + step_s - ready_s > kNanosecond && !spans.empty()) link("host", begin_s + step_s - ready_s);
    return std::move(nodes);
  }

  struct Done {
    std::vector<std::uint64_t> nodes;  ///< to wait for
    double end_s = 0.0;
  };

  /// Adds the nodes of an operation to those that another one waits for.
  void wait_for(int index, std::vector<std::uint64_t>& into) const {
    into.insert(into.end(), done[index].nodes.begin(), done[index].nodes.end());
  }

  const Span& span(const Op& op) const {
    const auto found = spans.find(op.name);
    if (found == spans.end())
      throw InputError("no execution trace: the step of rank {} was not recorded ({}); predict with --exact",
                       rank, op.name);
    return *found->second;
  }

  void add(int index, const Op& op) {
    if (std::holds_alternative<Copy>(op.action))
      throw InputError("no execution trace: {} copies between memories, which Chakra's traces do not have",
                       op.name);
    if (std::holds_alternative<Synchronize>(op.action)) return pass(index, op);
    if (op.stream == Stream::kComm) return add_message(index, op);
    join_chain(op);
    if (op.within < 0) {
      open = index;
      open_from = span(op).start_s;
      return;  // its pieces follow
    }
    compute(op.name, span(op).start_s, span(op).end_s);
    done[index] = {{chain}, span(op).end_s};
  }

  /// An operation without duration: who waits for it waits for what it waits for.
  void pass(int index, const Op& op) {
    Done& own = done[index];
    for (const int before : op.after) {
      wait_for(before, own.nodes);
      own.end_s = std::max(own.end_s, done[before].end_s);
    }
    if (op.stream == Stream::kCompute) join_chain(op);
  }

  void add_message(int index, const Op& op) {
    ChakraNode node{.id = next++, .name = op.name, .type = ChakraType::kCollective};
    if (const auto later = ends.upper_bound(span(op).start_s + kNanosecond); later != ends.begin())
      node.after.push_back(std::prev(later)->second);
    for (const int before : op.after) wait_for(before, node.after);
    node.after = sorted_unique(std::move(node.after));
    const auto message = [&](const auto& one, ChakraType type, int from, int to) {
      node.type = type;
      node.numbers = {
          {"comm_size", size_of(one.message)}, {"comm_src", from}, {"comm_dst", to}, {"comm_tag", one.tag}};
    };
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      if (traits(call->kind).chakra < 0)
        throw InputError(
            "no execution trace: {} rotates arrays in a ring, which Chakra has no collective for", op.name);
      node.numbers = {{"comm_type", traits(call->kind).chakra}, {"comm_size", size_of(call->message)}};
      node.group = group_name(schedule, schedule.group_index(call->group, rank));
    } else if (const auto* send = std::get_if<Send>(&op.action)) {
      message(*send, ChakraType::kSend, rank, rank + send->offset);
    } else if (const auto* receive = std::get_if<Recv>(&op.action)) {
      message(*receive, ChakraType::kReceive, rank + receive->offset, rank);
    }
    done[index] = {{node.id}, span(op).end_s};
    auto place = nodes.end();  // before what computes meanwhile
    const auto meanwhile = [&](const ChakraNode& one) {
      return one.type <= ChakraType::kCompute && std::ranges::find(node.after, one.id) == node.after.end();
    };
    while (place != nodes.begin() && meanwhile(*std::prev(place))) --place;
    nodes.insert(place, std::move(node));
  }
  static std::int64_t size_of(Bytes bytes) { return std::llround(bytes.count()); }

  /// The next computing node waits for these, too.
  void join_chain(const Op& op) {
    for (const int before : op.after) {
      wait_for(before, chained);
      ready_s = std::max(ready_s, done[before].end_s);
    }
  }
  void advance(double until_s) {
    if (open >= 0 && until_s > open_from) compute(program.ops[open].name, open_from, until_s);
    open_from = std::max(open_from, until_s);
  }
  void close() {
    if (open < 0) return;
    const Op& op = program.ops[open];
    advance(span(op).end_s);
    if (nodes.empty() || !chained.empty()) compute(op.name, open_from, open_from);
    done[open] = {{chain}, std::max(open_from, ready_s)};
    open = -1;
  }

  void compute(const std::string& name, double start_s, double end_s) {
    if (start_s - ready_s > kNanosecond / 2.0) link(name + "/launch", start_s - ready_s);
    link(name, end_s - start_s);
    ready_s = end_s;
    ends[end_s] = chain;
  }
  void link(const std::string& name, double duration_s) {
    ChakraNode node{
        .id = next++, .name = name, .after = std::move(chained), .duration_s = std::max(duration_s, 0.0)};
    if (chain > 0) node.after.push_back(chain);
    node.after = sorted_unique(std::move(node.after));
    chained.clear();
    chain = node.id;
    nodes.push_back(std::move(node));
  }

  const Program& program = schedule.program(rank);
  std::vector<Done> done = std::vector<Done>(program.ops.size());  ///< by operation
  std::map<std::string, const Span*> spans{};
  std::vector<ChakraNode> nodes{};
  std::map<double, std::uint64_t> ends{};  ///< computing nodes by their ends; a message waits for the last
  std::vector<std::uint64_t> chained{};    ///< nodes that the next computing one waits for
  std::uint64_t next = 1, chain = 0;       ///< the last computing node; 0: none
  double ready_s = 0.0;                    ///< when all that the next one waits for is done
  int open = -1;                           ///< operation whose pieces are written
  double open_from = 0.0;
};

}  // namespace

std::vector<std::string> chakra_traces(const Result& result) {
  if (result.forecast.schedule == nullptr) throw InputError("no execution trace: it is written of forecasts");
  const Schedule& schedule = *result.forecast.schedule;
  return transformed(whole_numbers(0, schedule.world_size), [&](int rank) {
    return chakra_text(RankNodes{schedule, result, rank}.take());
  });
}

void write_chakra(const std::string& prefix, const Result& result, bool force) {
  const std::vector<std::string> traces = chakra_traces(result);
  const auto path = [&](std::size_t rank) { return fmt::format("{}.{}.et", prefix, rank); };
  if (const std::string next = path(traces.size()); std::filesystem::exists(next))
    throw InputError("{}: is of a step on more ranks; remove it, or choose another name", next);
  check_writable(prefix + ".groups.json", force);  // all or none
  for (std::size_t rank = 0; rank < traces.size(); ++rank) check_writable(path(rank), force);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) write_file(path(rank), traces[rank], force);
  const Schedule& schedule = *result.forecast.schedule;
  nlohmann::json groups = nlohmann::json::object();
  for (std::size_t i = 0; i < schedule.groups.size(); ++i)
    if (const std::string name = group_name(schedule, static_cast<int>(i)); name != "0")
      groups[name] = schedule.groups[i].ranks;
  write_file(prefix + ".groups.json", groups.dump(1) + "\n", force);
}

}  // namespace stepcast

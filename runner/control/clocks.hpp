#pragma once

/// The two clocks of a measurement.
namespace stepcast {

/// Seconds of the steady clock; only differences mean something.
double wall_clock_s();

/// Processor seconds that all threads of this process have used.
double process_cpu_s();

/// Processor seconds that the calling thread has used.
double thread_cpu_s();

}  // namespace stepcast

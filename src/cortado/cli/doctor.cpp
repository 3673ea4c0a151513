// cortado doctor: shows the machine, which of its features are used and where files are found, and checks the
// operators.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <filesystem>

#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/progress.h"
#include "cortado/base/table.h"
#include "cortado/bench/model_check.h"
#include "cortado/bench/operators.h"
#include "cortado/cli/common.h"
#include "cortado/compare/compare.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/kernels.h"
#include "cortado/tokenizers/sentencepiece/bridge.h"

namespace cortado {
namespace {

// Facts by section ("machine", "torch", ...), and one line per problem.
struct Findings {
  Json facts;
  std::vector<std::string> problems;
};

// Returns the result of `find`, or null after adding its error to the problems.
template <typename Find>
Json found(Findings& findings, Find&& find) {
  try {
    return find();
  } catch (const c10::Error& error) {
    findings.problems.push_back(error.what_without_backtrace());
  } catch (const std::exception& error) {
    findings.problems.push_back(error.what());
  }
  return nullptr;
}

void look_at_machine(Findings& findings) {
  const Machine machine = this_machine();
  findings.facts["machine"] = {{"cpu", machine.cpu},
                               {"cores", machine.cores},
                               {"threads", machine.threads},
                               {"memory_bytes", machine.memory},
                               {"memory_available_bytes", machine.available},
                               {"cache_bytes", {machine.caches[1], machine.caches[2], machine.caches[3]}}};
  const auto torch_threads = at::get_num_threads();
  if (machine.threads > 0 && torch_threads > machine.threads) {
    findings.problems.push_back(concat("[threads] torch computes with ", torch_threads, " threads, but only ",
                                       machine.threads, " processors may be used: set OMP_NUM_THREADS or --threads"));
  }
}

void look_at_kernels(Findings& findings) {
  const char* wish = std::getenv("CORTADO_ISA");
  Json& kernels = findings.facts["kernels"];
  kernels["CORTADO_ISA"] = wish ? Json(wish) : Json(nullptr);
  kernels["chosen"] = found(findings, [] { return selected_isa(); });
  if (kernels["chosen"].is_null()) return;
  kernels["available"] = available_isas();
  if (!kernels_enabled()) {
    findings.problems.push_back(concat("[kernels] the hand-written kernels are turned off (",
                                       wish ? "CORTADO_ISA=aten" : "nothing fits",
                                       "): everything runs through ATen, several times slower"));
  }
  Json& primitives = kernels["primitives"];
  for (const Primitive& primitive : kPrimitives) {
    primitives[std::string(primitive.name)] = primitive.kernel.empty() ? "ATen" : std::string(primitive.kernel);
  }
}

// Whether the CPU multiplies bfloat16 in one instruction.
bool has_bfloat16_products(const Machine& machine) {
  return machine.cpu_knows("avx512_bf16") || machine.cpu_knows("amx_bf16") || machine.cpu_knows("bf16");
}

void look_at_torch(Findings& findings) {
  findings.facts["torch"] = {{"version", TORCH_VERSION},
                             {"threads", at::get_num_threads()},
                             {"cpu_capability", at::get_cpu_capability()},
                             {"mkl", at::hasMKL()},
                             {"lapack", at::hasLAPACK()},
                             {"onednn", at::hasMKLDNN()},
                             {"openmp", at::hasOpenMP()},
                             {"cuda", at::hasCUDA()},
                             {"bfloat16_products", has_bfloat16_products(this_machine())}};
  if (!at::hasOpenMP()) findings.problems.push_back("[torch] this build has no OpenMP: it computes with one thread");
}

// A check of one computation.
struct Trial {
  std::string name;
  std::function<OperatorCheck()> check;
};

// Returns the errors by name. `off` names the setting that turns the checked kernels off.
Json errors_of(Findings& findings, const std::vector<Trial>& trials, const std::string& where, const char* off,
               bool quiet) {
  Json errors;
  ProgressBar bar({.label = "doctor", .total = std::ssize(trials), .units_per_count = 0, .quiet = quiet});
  int64_t done = 0;
  for (const Trial& trial : trials) {
    bar.update(done++, trial.name + where);
    errors[trial.name] = found(findings, [&]() -> Json {
      const OperatorCheck check = trial.check();
      if (check.passed()) return check.error;
      throw Failure(concat("[", trial.name, "]", where, " differs from its definition by ", check.error,
                           " (allowed: ", check.tolerance, "): set ", off, " and report it"));
    });
  }
  return errors;
}

// Checks every operator in the types that have their own kernels, and small models. Compiles all kernels that are not
// in the cache.
std::vector<Trial> trials_on_gpu(at::Device device) {
  std::vector<Trial> trials;
  for (const auto& [type, name] : {std::pair(at::kBFloat16, "bfloat16"), std::pair(at::kFloat, "float32")}) {
    for (const OperatorCase& which : operator_cases()) {
      trials.push_back({concat(which.name, " ", name), [&which, device, type = type] {
                          return check_operator(which, {.tokens = 150, .heads = 2, .size = 64}, type, device);
                        }});
    }
  }
  for (const std::string& mixer : comparable_mixers()) {
    trials.push_back({"tokens of " + mixer, [mixer, device] { return check_tokens(mixer, device); }});
    trials.push_back({"a training step of " + mixer, [mixer, device] { return check_training_step(mixer, device); }});
  }
  return trials;
}

void look_at_gpus(Findings& findings, bool quiet) {
  Json& gpu = findings.facts["gpu"];
  const auto count = static_cast<int>(at::getNumGPUs());
  gpu["number"] = count;
  const std::string folder = cuda::cache_folder();
  gpu["CORTADO_CUDA_CACHE"] = folder.empty() ? "off" : folder;
  for (int i = 0; i < count; ++i) {
    const std::string name = concat("gpu_", i);
    gpu[name] = found(findings, [i]() -> Json {
      const auto it = cuda::describe(i);
      return concat(it.name, ", ", it.architecture, ", ", it.multiprocessors, " multiprocessors, driver for CUDA ",
                    it.driver / 1000, ".", it.driver % 1000 / 10);
    });
    if (gpu[name].is_null()) continue;
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(i));
    findings.facts["gpu_checks"][name] =
        errors_of(findings, trials_on_gpu(device), concat(" on GPU ", i), "CORTADO_CUDA=off", quiet);
  }
  for (const auto& [name, kept] : cuda::kept_binaries()) gpu["binaries"][name] = kept;
}

// Returns the file that the code at `address` was loaded from.
std::string library_of(const void* address) {
  Dl_info info{};
  if (!::dladdr(address, &info) || !info.dli_fname) throw Failure("[libraries] a library can't be located");
  return info.dli_fname;
}

void look_for_files(Findings& findings) {
  Json& files = findings.facts["files"];
  const auto library = [&](const void* address) { return found(findings, [address] { return library_of(address); }); };
  files["program"] = found(findings, [] { return std::filesystem::read_symlink("/proc/self/exe").string(); });
  files["libcortado"] = library(reinterpret_cast<const void*>(&find_operator_cases));
  files["libcortado_ops"] = library(reinterpret_cast<const void*>(&selected_isa));
  files["libtorch"] = library(reinterpret_cast<const void*>(&at::get_cpu_capability));
  files["sentencepiece"] =
      found(findings, [] { return library_of(reinterpret_cast<const void*>(sentencepiece_trainer())); });
  const char* share = std::getenv("CORTADO_SHARE");
  files["CORTADO_SHARE"] = share ? Json(share) : Json(nullptr);
  files["configs"] = found(findings, [] { return shipped_file("configs"); });
  files["data"] = found(findings, [] { return shipped_file("data"); });
}

// Checks outputs and gradients of every operator on small inputs.
void try_operators(Findings& findings, bool quiet) {
  std::vector<Trial> trials;
  for (const OperatorCase& which : operator_cases()) {
    trials.push_back(
        {which.name, [&which] { return check_operator(which, {.tokens = 150, .heads = 2, .size = 16}, at::kFloat); }});
  }
  findings.facts["checks"] = errors_of(findings, trials, "", "CORTADO_ISA=aten", quiet);
}

//  --- Text output. ---

std::string as_text(const std::string& key, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text;
    for (const Json& one : value) text += (text.empty() ? "" : ", ") + as_text(key, one);
    return text;
  }
  if (key.ends_with("_bytes")) return human_bytes(value.get<double>());
  return value.is_number_float() ? concat(value.get<double>()) : value.dump();
}

std::string label_of(std::string key) {
  if (key.ends_with("_bytes")) key.resize(key.size() - 6);
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

// Returns "25 of 26".
std::string right_ones(const Json& errors) {
  const auto right = std::count_if(errors.begin(), errors.end(), [](const Json& error) { return error.is_number(); });
  return concat(right, " of ", errors.size());
}

void print_text(const Findings& findings) {
  Table table({"", "", ""});
  for (const auto& [section, facts] : findings.facts.items()) {
    if (section == "checks" || section == "gpu_checks") continue;
    std::string first = section;
    for (const auto& [key, value] : facts.items()) {
      if (key == "primitives" || key == "binaries") continue;
      table.add_row({std::exchange(first, ""), key.starts_with("CORTADO") ? key : label_of(key), as_text(key, value)});
    }
  }
  const std::string text = table.text();
  std::cout << text.substr(text.find('\n', text.find('\n') + 1) + 1) << "\n";  // without the empty header
  Table kernels({"primitive", "computed by"});
  const Json primitives = findings.facts["kernels"].value("primitives", Json::object());
  for (const auto& [name, kernel] : primitives.items()) kernels.add_row({name, kernel.get<std::string>()});
  std::cout << kernels.text() << "\n";
  Table binaries({"kernels for GPUs", "binaries kept"});
  for (const auto& [name, kept] : findings.facts["gpu"]["binaries"].items()) binaries.add_row({name, kept.dump()});
  std::cout << binaries.text() << "\n";
  std::cout << right_ones(findings.facts["checks"]) << " operators agree with their definitions\n";
  const Json by_gpu = findings.facts.value("gpu_checks", Json::object());
  for (const auto& [name, errors] : by_gpu.items()) {
    std::cout << right_ones(errors) << " checks of kernels passed on " << label_of(name) << "\n";
  }
}

void examine(bool json) {
  Findings findings;
  look_at_machine(findings);
  look_at_kernels(findings);
  look_at_torch(findings);
  look_for_files(findings);
  look_at_gpus(findings, json);
  if (!findings.facts["kernels"]["chosen"].is_null()) try_operators(findings, json);
  if (json) {
    findings.facts["problems"] = findings.problems;
    std::cout << findings.facts.dump(2) << std::endl;
  } else {
    print_text(findings);
  }
  if (findings.problems.empty()) {
    if (!json) std::cout << "all is well" << std::endl;
    return;
  }
  std::cout.flush();
  for (const std::string& problem : findings.problems) {
    std::cerr << "cortado: " << problem.substr(0, problem.find('\n')) << std::endl;
  }
  throw CLI::RuntimeError(1);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Print what this machine has and uses, and check every operator against its definition");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  const auto common = add_common_options(*command);
  command->footer(
      "The exit code is 0 if all is well, otherwise 1, with one line per problem.\n"
      "CORTADO_ISA=avx512|avx2|sse4|scalar|aten chooses the kernels' instruction set; aten turns them off.\n"
      "CORTADO_CUDA=off turns off the kernels for GPUs; CORTADO_CUDA_CACHE=FOLDER|off is where their binaries are\n"
      "kept.\n"
      "Examples:\n"
      "  cortado doctor\n"
      "  CORTADO_ISA=avx2 cortado doctor --json");
  command->callback([json, common] {
    common->apply();
    examine(*json);
  });
}

}  // namespace cortado

# Finds libtorch inside a Python environment and offers it as the target cortado::torch.
# Does not use find_package(Torch), which asks for a whole CUDA toolkit if torch is a CUDA build: calling torch's own
# CUDA operators needs none. Set CORTADO_PYTHON to the interpreter whose torch is to be used.
if(NOT DEFINED CORTADO_TORCH_DIR)
  execute_process(
    COMMAND ${CORTADO_PYTHON} -c "import torch, os; print(os.path.dirname(torch.__file__)); print(torch.__version__)"
    OUTPUT_VARIABLE torch_facts
    RESULT_VARIABLE torch_missing
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(torch_missing)
    message(FATAL_ERROR "no torch in ${CORTADO_PYTHON}: run `make setup`, or set CORTADO_PYTHON to a Python that has torch 2.11 or newer")
  endif()
  string(REPLACE "\n" ";" torch_facts "${torch_facts}")
  list(GET torch_facts 0 CORTADO_TORCH_DIR)
  list(GET torch_facts 1 torch_version)
  if(torch_version VERSION_LESS 2.11)
    message(FATAL_ERROR "torch 2.11 or newer is needed, ${CORTADO_PYTHON} has ${torch_version}")
  endif()
  message(STATUS "torch ${torch_version} in ${CORTADO_TORCH_DIR}")
endif()

if(TARGET cortado_torch)
  return()
endif()
add_library(cortado_torch INTERFACE)
add_library(cortado::torch ALIAS cortado_torch)
target_include_directories(cortado_torch SYSTEM INTERFACE
  ${CORTADO_TORCH_DIR}/include ${CORTADO_TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(cortado_torch INTERFACE ${CORTADO_TORCH_DIR}/lib)
target_link_libraries(cortado_torch INTERFACE torch torch_cpu c10)
if(EXISTS ${CORTADO_TORCH_DIR}/lib/libtorch_cuda.so)
  # Nothing refers to these by symbol: without --no-as-needed the linker would drop them, and CUDA with them.
  target_link_options(cortado_torch INTERFACE -Wl,--no-as-needed)
  target_link_libraries(cortado_torch INTERFACE torch_cuda c10_cuda)
endif()
target_link_options(cortado_torch INTERFACE -Wl,-rpath,${CORTADO_TORCH_DIR}/lib)
# at::parallel_for is inline: in a file compiled without OpenMP it is one plain loop. -fopenmp is no link option: at run
# time libtorch's OpenMP must be the only one.
target_compile_options(cortado_torch INTERFACE -fopenmp)

# One test program and ctest entry per layer (small ones share): src/cortado/LAYER/**/*_test.cpp -> bin/LAYER_tests.
# There is no entry per test: each would load libtorch, which takes longer than most tests. `bin/LAYER_tests
# --gtest_filter=...` runs one. slow_tests() moves tests into an entry LAYER_slow, labelled "slow", which `make test`
# skips. `make test` builds quick_tests, which is all programs but emulated_tests and threads_tests.
enable_testing()
find_package(GTest REQUIRED)

add_library(guarded_memory OBJECT src/cortado/testing/guarded_memory.cpp)
target_link_libraries(guarded_memory PRIVATE cortado::torch GTest::gtest)

add_custom_target(quick_tests)

# test_program(LAYER...) makes one program of the layers' tests, with the first layer's name.
function(test_program)
  set(tests)
  foreach(layer ${ARGN})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS src/cortado/${layer}/*_test.cpp)
    list(APPEND tests ${found})
  endforeach()
  list(FILTER tests EXCLUDE REGEX "(/threads|_gpu)_test\\.cpp$")
  make_test_program(${ARGV0} -Og ${tests})
  target_compile_options(${ARGV0}_tests PRIVATE  # false alarm in torch's headers at -Og
    $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)
  add_dependencies(quick_tests ${ARGV0}_tests)
endfunction()

# make_test_program(NAME LEVEL FILE...) makes NAME_tests of the files. Less optimisation compiles faster: -O1 saves a
# quarter of the time.
function(make_test_program name optimised)
  add_executable(${name}_tests ${ARGN})
  if(name STREQUAL base)
    in_units(${name}_tests)  # no torch, so it compiles while the precompiled header is made
  else()
    uses_torch(${name}_tests)
    if(NOT CORTADO_SANITIZE MATCHES "address")  # the sanitizer detects more
      target_sources(${name}_tests PRIVATE $<TARGET_OBJECTS:guarded_memory>)
    endif()
  endif()
  target_compile_options(${name}_tests PRIVATE $<$<CONFIG:Release>:${optimised}>)
  target_link_libraries(${name}_tests PRIVATE cortado GTest::gtest GTest::gtest_main)
  add_test_entry(${name} ${name}_tests)
endfunction()

function(add_test_entry name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 3600  # half an hour under sanitizers on a busy machine
    FAIL_REGULAR_EXPRESSION "Running 0 tests"
    ENVIRONMENT "CORTADO_BIN=${CMAKE_BINARY_DIR}/bin/cortado;CORTADO_SOURCE=${CMAKE_SOURCE_DIR}")
endfunction()

# slow_tests(LAYER SECONDS PATTERN...): moves tests of LAYER's program that are too slow for `make test` into an entry
# of their own. SECONDS is that entry's rough duration: ctest starts the longest first.
function(slow_tests layer seconds)
  list(JOIN ARGN ":" names)
  set_tests_properties(${layer} PROPERTIES ENVIRONMENT_MODIFICATION "GTEST_FILTER=set:-${names}")
  add_test_entry(${layer}_slow ${layer}_tests --gtest_filter=${names})
  set_tests_properties(${layer}_slow PROPERTIES LABELS slow COST ${seconds})
endfunction()

test_program(base)
test_program(mechanisms)
test_program(primitives formats)
test_program(nn)
test_program(models tokenizers)
test_program(tasks data evaluate)
test_program(generate)
test_program(train compare sweep)
test_program(convert analyze)
test_program(serve cli bench)

slow_tests(primitives 10 GatedScanKernel.TheNumberOfThreadsChangesNothing)
slow_tests(mechanisms 30 */Conformance.EqualsItsDefinitionOverAThousandTokens/*)
slow_tests(tasks 6 Pathfinder.HalfAreConnected Regbench.DrawsAsThePublicGenerator)
set_tests_properties(primitives PROPERTIES COST 20)
set_tests_properties(mechanisms PROPERTIES COST 45)

# GPU kernels on the host, where a warp's lanes run one by one. An index beyond an array ends the program; sanitizers
# report more.
file(GLOB_RECURSE emulated_tests CONFIGURE_DEPENDS src/cortado/*_gpu_test.cpp)
make_test_program(emulated -O1 ${emulated_tests})
set_tests_properties(emulated PROPERTIES LABELS slow COST 70)
if(NOT CORTADO_SANITIZE)
  target_compile_options(emulated_tests PRIVATE
    $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-fsanitize=bounds;-fsanitize-undefined-trap-on-error>)
endif()

# Tests the kernels alone, on std::threads: the thread sanitizer cannot follow torch's threads.
file(GLOB_RECURSE threads_tests CONFIGURE_DEPENDS src/cortado/*/threads_test.cpp)
add_executable(threads_tests ${threads_tests} $<TARGET_OBJECTS:cortado_kernels>)
target_link_libraries(threads_tests PRIVATE hwy GTest::gtest GTest::gtest_main)
add_test(NAME threads COMMAND threads_tests)
set_tests_properties(threads PROPERTIES LABELS slow)

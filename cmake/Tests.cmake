# One test program and ctest entry a layer: src/cortado/LAYER/**/*_test.cpp -> bin/LAYER_tests. Not an entry a test: each would load
# libtorch anew, which takes longer than most tests. `bin/LAYER_tests --gtest_filter=...` runs single ones.
enable_testing()
find_package(GTest REQUIRED)

foreach(layer base formats primitives nn mechanisms models tokenizers data tasks evaluate generate train compare sweep convert analyze serve cli)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS src/cortado/${layer}/*_test.cpp)
  list(FILTER tests EXCLUDE REGEX "/threads_test\\.cpp$")
  if(tests)
    add_executable(${layer}_tests ${tests})
    if(layer STREQUAL base)
      in_units(base_tests)  # no torch, so it compiles while the precompiled header is made
    else()
      uses_torch(${layer}_tests)
    endif()
    target_compile_options(${layer}_tests PRIVATE $<$<CONFIG:Release>:-O1>)  # compiles in three quarters of the time
    target_link_libraries(${layer}_tests PRIVATE cortado GTest::gtest GTest::gtest_main)
    add_test(NAME ${layer} COMMAND ${layer}_tests)
    set_tests_properties(${layer} PROPERTIES TIMEOUT 1800
      ENVIRONMENT "CORTADO_BIN=${CMAKE_BINARY_DIR}/bin/cortado;CORTADO_SOURCE=${CMAKE_SOURCE_DIR}")
  endif()
endforeach()

# They define what a GPU's compiler has by itself (primitives/cuda/emulate.h), which is nobody else's business.
file(GLOB_RECURSE emulated CONFIGURE_DEPENDS src/cortado/*/*_gpu_test.cpp)
set_source_files_properties(${emulated} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# The kernels alone, without torch, on std::threads: what the thread sanitizer can follow.
file(GLOB_RECURSE threads_tests CONFIGURE_DEPENDS src/cortado/*/threads_test.cpp)
add_executable(threads_tests ${threads_tests} $<TARGET_OBJECTS:cortado_kernels>)
target_link_libraries(threads_tests PRIVATE hwy GTest::gtest GTest::gtest_main)
add_test(NAME threads COMMAND threads_tests)

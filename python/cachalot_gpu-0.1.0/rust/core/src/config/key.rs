//! The keys. Those of the caching policy are `PyTorch` 2.15's.

pub(crate) const ALLOW_GROWTH: &str = "allow_growth";
pub(crate) const ARENA_MB: &str = "arena_mb";
pub(crate) const BACKEND: &str = "backend";
pub(crate) const CHUNK_MB: &str = "chunk_mb";
pub(crate) const COMPACT: &str = "compact";
pub(crate) const COMPLETED_PAGES_ONLY: &str = "completed_pages_only";
pub(crate) const DECISIONS: &str = "decisions";
pub(crate) const EXACT_SEGMENTS: &str = "exact_segments";
pub(crate) const EXPANDABLE_SEGMENTS: &str = "expandable_segments";
pub(crate) const EXPANDABLE_SEGMENTS_RESERVE: &str = "expandable_segments_reserve";
pub(crate) const EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS: &str = "expandable_segments_reserve_by_class";
pub(crate) const FALLBACK: &str = "fallback";
pub(crate) const FIRST_REGION_MB: &str = "first_region_mb";
pub(crate) const GARBAGE_COLLECTION_THRESHOLD: &str = "garbage_collection_threshold";
pub(crate) const GRAPH_CAPTURE_RECORD_STREAM_REUSE: &str = "graph_capture_record_stream_reuse";
pub(crate) const LARGEST_OBJECT_KB: &str = "largest_object_kb";
pub(crate) const LARGE_SEGMENT_SIZE_MB: &str = "large_segment_size_mb";
pub(crate) const MAX_INTERNAL_FRAGMENTATION_MB: &str = "max_internal_fragmentation_mb";
pub(crate) const MAX_NON_SPLIT_ROUNDING_MB: &str = "max_non_split_rounding_mb";
pub(crate) const MAX_SPLIT_SIZE_MB: &str = "max_split_size_mb";
pub(crate) const MAX_STALL_US: &str = "max_stall_us";
/// Another name of [`DECISIONS`], with other values.
pub(crate) const PARITY: &str = "parity";
pub(crate) const PER_PROCESS_MEMORY_FRACTION: &str = "per_process_memory_fraction";
pub(crate) const PINNED_FREE_CATCH_ALL: &str = "pinned_free_catch_all";
pub(crate) const PINNED_MAX_CACHED_SIZE_MB: &str = "pinned_max_cached_size_mb";
pub(crate) const PINNED_MAX_ROUND_THRESHOLD_MB: &str = "pinned_max_round_threshold_mb";
pub(crate) const PINNED_NUM_REGISTER_THREADS: &str = "pinned_num_register_threads";
pub(crate) const PINNED_RESERVE_SEGMENT_SIZE_MB: &str = "pinned_reserve_segment_size_mb";
pub(crate) const PINNED_USE_BACKGROUND_THREADS: &str = "pinned_use_background_threads";
pub(crate) const PINNED_USE_CUDA_HOST_REGISTER: &str = "pinned_use_cuda_host_register";
pub(crate) const PLAN_DEADLINE_MS: &str = "plan_deadline_ms";
pub(crate) const POLICY: &str = "policy";
pub(crate) const RECLAIM: &str = "reclaim";
pub(crate) const RECLAIM_BUDGET: &str = "reclaim_budget";
pub(crate) const REGION_GARBAGE_COLLECTION: &str = "region_garbage_collection";
pub(crate) const RELEASE_LOCK_ON_CUDAMALLOC: &str = "release_lock_on_cudamalloc";
pub(crate) const RETRY_MS: &str = "retry_ms";
pub(crate) const ROUNDUP_POWER2_DIVISIONS: &str = "roundup_power2_divisions";
pub(crate) const SLACK: &str = "slack";
pub(crate) const STRICT_STALL: &str = "strict_stall";
pub(crate) const THROW_ON_CUDAMALLOC_OOM: &str = "throw_on_cudamalloc_oom";
pub(crate) const TUNE: &str = "tune";
pub(crate) const TUNE_BUDGET_MS: &str = "tune_budget_ms";
/// Another name of [`PINNED_USE_CUDA_HOST_REGISTER`].
pub(crate) const PINNED_USE_HIP_HOST_REGISTER: &str = "pinned_use_hip_host_register";
/// Another name of [`RELEASE_LOCK_ON_CUDAMALLOC`].
pub(crate) const RELEASE_LOCK_ON_HIPMALLOC: &str = "release_lock_on_hipmalloc";

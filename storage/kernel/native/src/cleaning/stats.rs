//! What pass two counts: the fields of CopyStats (storage/kernel/interface.py), in its order.

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Stats {
            $(pub $name: u64,)*
        }

        impl Stats {
            pub fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
            }

            pub fn in_order(&self) -> Vec<u64> {
                vec![$(self.$name),*]
            }
        }
    };
}

counters! {
    messages_read,
    bytes_read,
    messages_written,
    bytes_written,
    invalid_messages_read,
    superseded,
    aborted,
    tombstones_read,
    tombstones_expired,
    markers_removed,
    batches_read,
    batches_copied,
    batches_rewritten,
    batches_emptied,
}

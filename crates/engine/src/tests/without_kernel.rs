//! An engine over parts that are fakes: memory that stands for the program's addresses, a device in memory that counts
//! its reads and fails when told to, and whatever direct reclaim a test wants. No userfaultfd, no thread, no mapping
//! but the frames' own. So a test says in which order everything happens.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};

use folioswap_core::{BLOCK_PAGES, BlockId, FolioId, Order, PAGE_SIZE, State, Taken};
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::uffd::{MoveError, Userfaultfd};

use crate::block::Parts;
use crate::config::swap_in_policy::SwapIn;
use crate::device::Device;
use crate::device::topology::Topology;
use crate::engine::{DirectReclaim, Engine};
use crate::fault::flow::Fault;
use crate::memory::backing::Backing;
use crate::memory::compactor::{CompactionMeans, Compactor};
use crate::memory::frames::Frames;
use crate::memory::map_error::MapError;
use crate::memory::mapper::Mapper;
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::memory::zones::Zoning;
use crate::policy::Policy;
use crate::process::shared_stats::{StatsHome, of_its_own};
use crate::process::turns::{Turns, Waits, asleep};
use crate::reclaim::evict;
use crate::swap::attached::{DEVICE_SHIFT, Frees, Layout};
use crate::swap::health::SwapInError;
use crate::swap::space::SwapSpace;

const HUGE: usize = Order::HUGE.bytes();

/// Whole blocks that fit RAM.
pub(crate) const NR_FIT: usize = 8;

/// The first managed block. Its addresses are nobody's.
const FIRST: usize = 1000;

/// The thread that touches pages.
const THREAD: u32 = 1;

type Page = [u8; PAGE_SIZE];

/// The program's addresses: the pages that are mapped there.
#[derive(Default)]
pub(crate) struct Addresses {
    pages: Mutex<HashMap<usize, Box<Page>>>,
    mappings: RwLock<()>,
}

/// The bytes of a home.
///
/// # Safety
/// As for [`Mapper`].
unsafe fn at<'m>(home: usize, len: usize) -> &'m mut [u8] {
    // SAFETY: memory of the frames' reservation, which the caller has to itself.
    unsafe { std::slice::from_raw_parts_mut(home as *mut u8, len) }
}

impl Addresses {
    fn insert(&self, addr: usize, bytes: &[u8]) {
        for (index, bytes) in bytes.chunks(PAGE_SIZE).enumerate() {
            let page: Page = bytes.try_into().expect("whole pages are mapped");
            let before = self.pages.lock().unwrap().insert(addr + index * PAGE_SIZE, Box::new(page));
            assert!(before.is_none(), "a page is mapped where one is");
        }
    }

    fn remove(&self, addr: usize, len: usize) -> Vec<Option<Box<Page>>> {
        let mut pages = self.pages.lock().unwrap();
        (addr..addr + len).step_by(PAGE_SIZE).map(|addr| pages.remove(&addr)).collect()
    }
}

/// Maps by copying. Homes keep their memory, and hold nonsense where they should have none.
struct FakeMapper {
    addresses: Arc<Addresses>,
    homes: Range<usize>,
}

impl Mapper for FakeMapper {
    fn uffd(&self) -> &Userfaultfd {
        unreachable!("there is no kernel")
    }

    fn pagemap(&self) -> &Pagemap {
        unreachable!("there is no kernel")
    }

    fn registers_frames(&self) -> bool {
        false
    }

    fn hold_mappings(&self) -> RwLockWriteGuard<'_, ()> {
        self.addresses.mappings.write().unwrap()
    }

    unsafe fn populate(&self, home: usize) -> Result<bool, MapError> {
        // SAFETY: the caller's promise.
        unsafe { at(home, HUGE) }.fill(0);
        Ok(true)
    }

    unsafe fn populate_small(&self, home: usize) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        unsafe { self.populate(home) }.map(drop)
    }

    unsafe fn repopulate(&self, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        unsafe { at(home, len) }.fill(0);
        Ok(())
    }

    unsafe fn move_home(&self, to: usize, from: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's promise. They are different homes.
        unsafe { at(to, len).copy_from_slice(at(from, len)) };
        Ok(())
    }

    unsafe fn map_fresh(&self, folio: usize, _home: usize) -> Result<bool, MapError> {
        self.addresses.insert(folio, &[0; HUGE]);
        Ok(true)
    }

    unsafe fn map(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        self.addresses.insert(folio, unsafe { at(home, len) });
        Ok(())
    }

    unsafe fn unmap(&self, folio: usize, home: usize, len: usize) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        let home = unsafe { at(home, len) };
        for (page, bytes) in self.addresses.remove(folio, len).into_iter().zip(home.chunks_mut(PAGE_SIZE)) {
            bytes.copy_from_slice(&*page.expect("all of a mapped folio is there"));
        }
        Ok(())
    }

    unsafe fn discard(&self, addr: usize, len: usize) -> Result<(), MapError> {
        if self.homes.contains(&addr) {
            // SAFETY: the caller's promise.
            unsafe { at(addr, len) }.fill(0xdd);
        } else {
            self.addresses.remove(addr, len);
        }
        Ok(())
    }

    fn has_page(&self, addr: usize) -> Option<bool> {
        Some(self.addresses.pages.lock().unwrap().contains_key(&addr))
    }

    unsafe fn fill(&self, addr: usize, len: usize) -> Result<(), MoveError> {
        self.addresses.insert(addr, &vec![0; len]);
        Ok(())
    }
}

/// What a device holds, and what was read from it.
pub(crate) struct Store {
    bytes: Mutex<Vec<u8>>,
    /// The bytes of each read since the last look.
    reads: Mutex<Vec<usize>>,
    /// Reads that still fail.
    pub nr_failing: AtomicUsize,
}

impl Store {
    pub fn take_reads(&self) -> Vec<usize> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

struct FakeDevice(Arc<Store>);

impl Device for FakeDevice {
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.reads.lock().unwrap().push(bytes.len());
        let one_less = |left: usize| left.checked_sub(1);
        if self.0.nr_failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        bytes.copy_from_slice(&self.0.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn name(&self) -> String {
        "a fake".into()
    }
}

/// Direct reclaim for tests that need none.
pub(crate) struct Unwanted;

impl DirectReclaim for Unwanted {
    fn reclaim(&self, _engine: &Engine, _order: Order) -> bool {
        unreachable!("there are frames")
    }

    fn compact(&self, _engine: &Engine) -> Option<Taken> {
        unreachable!("there are frames")
    }

    fn shed_copies(&self, _engine: &Engine) -> bool {
        unreachable!("there are frames")
    }
}

/// The engine, and the fakes that it stands on.
pub(crate) struct Simulated {
    pub engine: Engine,
    pub addresses: Arc<Addresses>,
    pub store: Arc<Store>,
}

impl Simulated {
    /// An engine with RAM for [`NR_FIT`] whole blocks and a device for more. `order`: of all folios, if it is fixed.
    pub fn new(order: Option<Order>, swap_in: SwapIn, direct: impl DirectReclaim + 'static) -> Self {
        let addresses = Arc::new(Addresses::default());
        let store = Arc::new(Store {
            bytes: Mutex::new(vec![0; 16 * NR_FIT * HUGE]),
            reads: Mutex::default(),
            nr_failing: AtomicUsize::new(0),
        });
        let topology: Topology = "node 0 cpus 0-4095".parse().unwrap();
        let zoning = Zoning::new(&topology, NR_FIT);
        let frames = Frames::new(NR_FIT, zoning.nr_zones, false).unwrap();
        let stats = Arc::new(StatsHome::Own(of_its_own()));
        let mapper = Box::new(FakeMapper { addresses: Arc::clone(&addresses), homes: frames.range() });
        let backing = Backing::new(frames, mapper, Arc::clone(&stats));
        let ram = Ram::new(zoning, backing, Arc::clone(&stats), (NR_FIT * HUGE) as u64).unwrap();
        let layout = Layout {
            most_slots: 1 << 20,
            device_shift: DEVICE_SHIFT,
            nr_cpus: 1,
            rotational: None,
            frees: Frees::Cheapest,
        };
        let device: Box<dyn Device> = Box::new(FakeDevice(Arc::clone(&store)));
        let background = Arc::clone(ram.demand().background());
        let swap = SwapSpace::new(vec![device.into()], layout, Some(topology), false, background, Arc::clone(&stats));
        let compactor = Compactor::new(ram.zones().all(), None, CompactionMeans::Migration, ram.demand().background());
        let table = Table::new([7; 192]);
        let patience = std::time::Duration::from_secs(20);
        let parts = Parts::new(table, ram, swap, stats);
        let engine = Engine::new(parts, Policy::new(order, swap_in), compactor, Box::new(direct), patience).unwrap();
        engine.table().ensure(FIRST..FIRST + 64);
        (FIRST..FIRST + 64).for_each(|block| engine.table().open(BlockId::from_index(block)));
        Simulated { engine, addresses, store }
    }

    pub fn state(&self, page: FolioId) -> State {
        let block = self.engine.lock(page.block());
        block.state(block.index_of(page.page_in_block()))
    }

    /// A touch of a page that is not mapped: the flow that a test drives.
    pub fn fault<'s>(
        &'s self,
        page: FolioId,
        waits: Waits<'s>,
    ) -> Pin<Box<dyn Future<Output = Result<bool, SwapInError>> + 's>> {
        let fault = Fault::new(&self.engine, page, THREAD, waits);
        Box::pin(fault.run(self.engine.gate().enter(THREAD)))
    }

    /// The same, to its end.
    pub fn touch(&self, page: FolioId) -> Result<bool, SwapInError> {
        asleep(self.fault(page, Waits::Asleep))
    }

    /// What a program reads from a page that is mapped: the same byte all over.
    pub fn mapped(&self, page: FolioId) -> Option<u8> {
        let pages = self.addresses.pages.lock().unwrap();
        let page = pages.get(&page.offset_bytes())?;
        assert!(page.iter().all(|byte| *byte == page[0]), "one page holds another's bytes");
        Some(page[0])
    }

    /// What a program does to a page: faults until it is mapped.
    pub fn write(&self, page: FolioId, byte: u8) {
        self.read(page);
        self.addresses.pages.lock().unwrap().get_mut(&page.offset_bytes()).expect("it was just read").fill(byte);
    }

    /// The same for a read.
    pub fn read(&self, page: FolioId) -> u8 {
        loop {
            match self.mapped(page) {
                Some(byte) => return byte,
                None => assert!(self.touch(page).unwrap(), "the fault was resolved"),
            }
        }
    }

    /// Fills a block. Page 0 gets `first`.
    pub fn fill(&self, block: BlockId, first: u8) {
        (0..Order::HUGE.nr_pages()).for_each(|page| self.write(block.page(page), first.wrapping_add(page as u8) | 1));
    }

    /// Whether a mapped page holds what [`Simulated::fill`] has put there.
    pub fn is_filled(&self, page: FolioId, first: u8) -> bool {
        self.mapped(page) == Some(first.wrapping_add(page.page_in_block() as u8) | 1)
    }

    /// Writes all of a block out, and takes it out of RAM.
    pub fn send_out(&self, id: BlockId) {
        evict::evict(&self.engine, id, &(0..BLOCK_PAGES));
        let mut block = self.engine.lock(id);
        for index in 0..block.nr_folios() {
            if block.folio(index).frame().is_some() {
                self.engine.ram().leave(&mut block, index);
            }
        }
        drop(block);
        self.store.take_reads();
    }

    pub fn nr_frames_in_use(&self) -> usize {
        self.engine.ram().zones().counts().in_use
    }
}

/// A managed block.
pub(crate) fn block(number: usize) -> BlockId {
    BlockId::from_index(FIRST + number)
}

/// Turns of a thread without a ring.
pub(crate) fn turns() -> Turns {
    Turns::on(None)
}

/// Goes on with a flow. `None`: it waits.
pub(crate) fn go_on<R>(flow: &mut Pin<Box<dyn Future<Output = R> + '_>>) -> Option<R> {
    match flow.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
